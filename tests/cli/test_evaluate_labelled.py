"""A run measured on a file that changed, which is refused, and on labelled rows of one's own: every row counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predict_runs import PLAIN, command_of, trained, write_image, write_table

import bnn

FCN = {"name": "fcn", "hidden": [8]}
QUICK = ("--resamples", 30, "--no-time", "--quiet")
TABLE: dict[str, Any] = {"test": 0.2, "validation": 0.1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `price` and `label` on one table, and 50 labelled rows of another."""
    folder = tmp_path_factory.mktemp("labelled")
    write_table(folder / "new.csv", 50, seed=1)
    for target, other in (("price", "label"), ("label", "price")):
        table = write_table(folder / f"{target}.csv")
        trained(
            folder / target, {"csv": str(table), "target": target, "drop": ["id", other], **TABLE}, FCN, method=PLAIN
        )
    return folder


def evaluated(*args: Any) -> Any:
    """What `evaluate` says about one run, as JSON."""
    ended = command_of("evaluate", *args, *QUICK, "--json")
    assert ended.code == 0, ended.err
    return next(iter(ended.json.values()))


def cells(path: Path, name: str) -> list[str]:
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    return [row[header.index(name)] for row in rows]


# -- a file that changed -----------------------------------------------------------------------------------------------


def test_rows_that_were_added_are_refused(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "price", tmp_path / "run")
    appended = tmp_path / "appended.csv"
    new = "\n".join((place / "new.csv").read_text().splitlines()[1:])
    appended.write_text(f"{(place / 'price.csv').read_text()}{new}\n")
    ended = command_of("evaluate", run, "--data", appended, *QUICK)
    assert ended.code == 2
    assert f"these are not the data of {run}: what differs is 56 training inputs then, 91 now; " in ended.err
    assert "8 validation inputs then, 13 now; 16 test inputs then, 26 now; the mean, sd or categories" in ended.err
    assert "the scale of the target" in ended.err
    assert "`bayesianize evaluate RUN --test FILE`" in ended.err
    assert not (run / "evaluation.json").exists()
    moved = shutil.copy(place / "price.csv", tmp_path / "moved.csv")
    assert evaluated(run, "--data", moved)["inputs"] == 16


def test_as_many_other_rows_are_refused(place: Path, tmp_path: Path) -> None:
    """Of older runs, too, which do not say how many rows there were."""
    run = shutil.copytree(place / "label", tmp_path / "run")
    other = write_table(tmp_path / "other.csv", seed=7)
    found = json.loads((run / "run.json").read_text())
    assert found.pop("rows") == {"train": 56, "validation": 8, "test": 16}
    (run / "run.json").write_text(json.dumps(found))
    ended = command_of("evaluate", run, "--data", other, *QUICK)
    assert (ended.code, ended.out) == (2, "")
    assert "what differs is the mean, sd or categories of 'height'. Split again" in ended.err
    assert evaluated(run)["inputs"] == 16
    renamed = tmp_path / "renamed.csv"
    renamed.write_text((place / "label.csv").read_text().replace("height", "tallness"))
    ended = command_of("evaluate", run, "--data", renamed, *QUICK)
    assert "the columns 'height'; 'kind' then, 'tallness'; 'kind' now" in ended.err


# -- labelled rows of one's own ----------------------------------------------------------------------------------------


def test_real_targets_are_those_of_predict(place: Path) -> None:
    """All 50 rows, with the run's own scaling: the RMSE is that of what `predict` says about the same file."""
    file = place / "new.csv"
    before = {path.name: path.read_bytes() for path in (place / "price").iterdir() if path.is_file()}
    found = evaluated(place / "price", "--test", file)
    run = bnn.open_run(place / "price")
    errors = np.array(run.predict(file)["mean"]) - np.array(cells(file, "price"), dtype=float)
    assert (found["inputs"], found["data"], found["target"]) == (50, "new.csv", "price")
    assert found["metrics"]["rmse"]["value"] == pytest.approx(np.sqrt(np.square(errors).mean()), rel=1e-5)
    assert {path.name: path.read_bytes() for path in (place / "price").iterdir() if path.is_file()} == before
    again = run.evaluate(file, resamples=30, progress=False)
    assert again.metrics["rmse"].value == found["metrics"]["rmse"]["value"]
    header, *rows = [line.split(",") for line in file.read_text().splitlines()]
    dicts = [dict(zip(header, row, strict=True)) for row in rows]
    assert run.evaluate(dicts, resamples=30).metrics == again.metrics


def test_classes_are_those_of_predict(place: Path, tmp_path: Path) -> None:
    """Values that training never showed are what they are in `predict`; rows without a target do not count."""
    header, *lines = (place / "new.csv").read_text().splitlines()
    lines[0], lines[1] = lines[0].replace(",a,", ",unseen,"), lines[1].replace(",b,", ",,")
    known = tmp_path / "known.csv"
    known.write_text("\n".join([header, *lines]) + "\n")
    lacking = tmp_path / "lacking.csv"
    lacking.write_text("\n".join([header, *lines, "r50,0.5,a,,1000"]) + "\n")
    ended = command_of("evaluate", place / "label", "--test", lacking, *QUICK, "--json")
    assert "not in the training part of column 'kind': 'unseen' (line 2); missing (line 3)" in ended.err
    assert "lacking.csv: 1 of 51 rows have no target and do not count" in ended.err
    with pytest.warns(UserWarning, match="unseen"):
        said = bnn.open_run(place / "label").predict(known)["class"]
    right = np.mean([a == b for a, b in zip(said, cells(known, "label"), strict=True)])
    found = next(iter(ended.json.values()))
    assert (found["inputs"], found["metrics"]["accuracy"]["value"]) == (50, pytest.approx(right))


def test_arrays_and_folders(tmp_path: Path) -> None:
    """Of an .npz file x and y; of images a folder per class, however many classes it has."""
    random = np.random.default_rng(0)
    x, y = random.normal(3.0, 2.0, size=(60, 3)), random.integers(5, 7, 60)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.savez(tmp_path / "new.npz", x=x[:20], y=y[:20])
    run = bnn.open_run(
        trained(tmp_path / "arrays", {"arrays": str(tmp_path / "train.npz"), "validation": 0.2}, FCN, method=PLAIN)
    )
    found = evaluated(tmp_path / "arrays", "--test", tmp_path / "new.npz")
    right = np.mean(np.array(run.predict(x[:20])["class"]) == y[:20].astype(str))
    assert (found["inputs"], found["metrics"]["accuracy"]["value"]) == (20, pytest.approx(right))
    assert run.evaluate((x[:20], y[:20]), resamples=30).metrics["accuracy"].value == pytest.approx(right)
    for i in range(24):
        write_image(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", seed=i)
        write_image(tmp_path / "one" / "b" / f"{i}.png", seed=100 + i)
    run = bnn.open_run(
        trained(tmp_path / "images", {"folder": str(tmp_path / "photos"), "validation": 0.2}, FCN, method=PLAIN)
    )
    found = evaluated(tmp_path / "images", "--test", tmp_path / "one")
    right = np.mean(np.array(run.predict(tmp_path / "one")["class"]) == "b")
    assert (found["inputs"], found["metrics"]["accuracy"]["value"]) == (24, pytest.approx(right))


def test_mistakes_say_what_to_do(place: Path, tmp_path: Path) -> None:
    run = place / "label"
    (tmp_path / "bare.csv").write_text("height,kind\n0.1,a\n")
    (tmp_path / "other.csv").write_text("height,kind,label\n0.1,a,huge\n")
    (tmp_path / "empty.csv").write_text("height,kind,label\n0.1,a,\n")
    for file, message in (
        ("bare.csv", "bare.csv: no column 'label'; its columns are 'height'; 'kind'"),
        ("other.csv", "other.csv, line 2: class 'huge' of column 'label' does not occur in the training file"),
        ("empty.csv", "empty.csv: no row has a target ('label'): nothing to test"),
        ("none.csv", "there is no file"),
    ):
        ended = command_of("evaluate", run, "--test", tmp_path / file, *QUICK)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err
    ended = command_of("evaluate", run, "--test", place / "new.csv", "--data", place / "label.csv", *QUICK)
    assert "--data says where the run's own data are, --test which others to measure on" in ended.err
    data = bnn.data.csv(place / "new.csv", "label", drop=["id", "price"])
    with pytest.raises(ValueError, match=r"not prepared as those of .*: run\.evaluate\(FILE\)"):
        bnn.open_run(run).evaluate(data)
