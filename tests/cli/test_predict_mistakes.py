from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from predict_runs import PLAIN, command, files_in, trained, write_table

FCN = {"name": "fcn", "hidden": [4]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and three runs on it."""
    place = tmp_path_factory.mktemp("place")
    table = str(write_table(place / "rows.csv", rows=40))
    classes = {"csv": table, "target": "label", "drop": ["id", "price"]}
    trained(place / "label", classes, FCN)
    trained(place / "plain", classes, FCN, method=PLAIN)
    trained(place / "price", {"csv": table, "target": "price", "drop": ["id", "label"]}, FCN)
    return place


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("label", "--abstain-above 1 --coverage 0.9", "--abstain-above gives the threshold and --coverage looks for"),
        (
            "label",
            "--by total",
            "--by total says when to abstain; give a threshold, too: --abstain-above or --coverage 0.9",
        ),
        ("label", "--by totl --abstain-above 1", "unknown uncertainty 'totl' (did you mean 'total'?); expected one of"),
        ("label", "--coverage 0", "--coverage is the share of inputs to answer, above 0 and at most 1, as 0.9; got 0"),
        ("label", "--coverage 90", "at most 1, as 0.9; got 90"),
        ("label", "--coverage nan", "at most 1, as 0.9; got nan"),
        ("label", "--abstain-above -0.5", "--abstain-above is the largest uncertainty to answer with, 0 or more"),
        ("label", "--abstain-above inf", "0 or more; got inf"),
        ("label", "--level 0.5", "--level is for intervals of real targets, and this run predicts classes"),
        ("price", "--level 90", "--level is the probability of the interval, between 0 and 1, as 0.9; got 90"),
        ("price", "--level 1", "between 0 and 1, as 0.9; got 1"),
        ("price", "--probs", "--probs is for classes, and this run predicts real targets"),
        ("plain", "--by epistemic --abstain-above 1", "--by epistemic: this run is a plain network"),
        ("label", "--by epistemic --abstain-above 1 --samples 1", "with --samples 1 nothing can disagree"),
        ("label", "--by epistemic --abstain-above 1 --samples 0", "with --samples 0 nothing can disagree"),
        ("label", "--keep idd", "rows.csv: no column 'idd'; its columns are"),
        ("label", "--keep idd", "did you mean 'id'?"),
        ("label", "--batch-size 0", "--batch-size"),
        ("label", "--samples some", "--samples"),
    ],
)
def test_options_that_make_no_sense(place: Path, tmp_path: Path, run: str, options: str, message: str) -> None:
    ended = command(place / run, place / "rows.csv", *options.split(), "--out", tmp_path / "table.csv")
    assert (ended.code, ended.out) == (2, "")
    assert message in " ".join(ended.err.replace("│", " ").split())
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("table.xlsx", "a table is written as .csv, .tsv, .json, .jsonl, by the ending of the file"),
        ("table", "a table is written as .csv, .tsv, .json, .jsonl, by the ending of the file"),
        ("there.csv", "there.csv is a folder; name a file in it"),
        ("nowhere/table.csv", "nowhere; create it first"),
        ("rows.csv", "rows.csv would replace one of the inputs; give another file"),
    ],
)
def test_files_that_cannot_be_written(place: Path, tmp_path: Path, out: str, message: str) -> None:
    table = tmp_path / "rows.csv"
    shutil.copy(place / "rows.csv", table)
    (tmp_path / "there.csv").mkdir()
    before = table.read_bytes()
    ended = command(place / "label", table, "--out", tmp_path / out)
    assert ended.code == 2
    assert message in ended.err
    assert files_in(tmp_path) == {"rows.csv", "there.csv"}
    assert table.read_bytes() == before


def test_a_failed_prediction_leaves_the_old_table(place: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("old")
    (tmp_path / "bad.csv").write_text("height,kind\n1,a\nhigh,b\n")
    ended = command(place / "label", place / "rows.csv", tmp_path / "bad.csv", "--out", tmp_path / "table.csv")
    assert ended.code == 2
    assert "bad.csv, line 3: 'high' in column 'height', which holds numbers" in ended.err
    assert (tmp_path / "table.csv").read_text() == "old"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hight,kind\n1,a\n", "rows.csv: no column 'height'; its columns are 'hight'; 'kind' (did you mean 'hight'?)"),
        ("", "is empty; its first line must name the columns"),
        ("height,kind\n", "has a line of names and no rows below it"),
        ("height,kind\n1,a,2\n", "rows.csv, line 2 has 3 cells, the line of names has 2"),
    ],
)
def test_tables_that_do_not_fit(place: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    ended = command(place / "label", tmp_path / "rows.csv")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize("name", ["a.png", "a.npy", "folder"])
def test_a_table_run_says_what_it_takes(place: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.png").touch()
    (tmp_path / "a.npy").touch()
    ended = command(place / "label", tmp_path / name)
    wanted = "this run was trained on a table with the columns 'height', 'kind': give a CSV file"
    kind = {"a.png": "an image", "a.npy": "a file of arrays", "folder": "a folder"}[name]
    assert (ended.code, ended.err) == (2, f"error: {wanted}; got {tmp_path / name}, {kind}\n")


def test_a_missing_file_suggests_the_nearest(place: Path) -> None:
    ended = command(place / "label", place / "row.csv")
    assert (ended.code, ended.err) == (2, f"error: there is no file {place / 'row.csv'} (did you mean 'rows.csv'?)\n")


def test_nothing_to_predict(place: Path) -> None:
    ended = command(place / "label")
    assert ended.code == 2
    assert "INPUT" in ended.err


def test_folders_that_hold_no_finished_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished, empty, fitted = (tmp_path / name for name in ("unfinished", "empty", "fitted"))
    for folder in (unfinished, empty):
        folder.mkdir()
    (unfinished / "recipe.json").write_text("{}")
    shutil.copytree(place / "plain", fitted)
    run = json.loads((fitted / "run.json").read_text())
    (fitted / "run.json").write_text(json.dumps(run | {"recipe": None}))
    damaged = shutil.copytree(place / "plain", tmp_path / "damaged")
    (damaged / "net.safetensors").write_bytes(b"")
    for folder, message in (
        (
            place / "labl",
            f"there is no folder {place / 'labl'} (did you mean '{place / 'label'}'?); expected the folder",
        ),
        (place / "label" / "run.json", "run.json is a file; expected the folder of a finished run, as `bayesianize "),
        (place / "label" / "run.json", f"wrote it: {place / 'label'}?"),
        (
            unfinished,
            "is not finished: there is a recipe.json, but no run.json; to resume it, start `bayesianize train` (or",
        ),
        (empty, f"{empty} holds no finished run: there is no run.json"),
        (place, f"there are runs in it: {place / 'label'}, {place / 'plain'}, {place / 'price'}"),
        (fitted, f"{fitted} is a run of bnn.fit, which does not know how to build its network: pass net="),
        (damaged, f"cannot load {damaged / 'net.safetensors'}"),
    ):
        ended = command(folder, place / "rows.csv")
        assert ended.code == 2
        assert message in ended.err
    monkeypatch.chdir(place)
    assert "there is no folder labl (did you mean 'label'?)" in command("labl", "rows.csv").err
