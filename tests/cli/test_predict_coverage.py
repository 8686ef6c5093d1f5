from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predict_runs import PLAIN, command, expected, trained, write_table

from bnn.train import load_run
from bnn.train.build import build_data
from bnn.train.runs.abstaining import smallest_threshold

FCN = {"name": "fcn", "hidden": [8]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and runs on it that have no validation.json."""
    place = tmp_path_factory.mktemp("coverage")
    table = str(write_table(place / "rows.csv", rows=120))
    classes = {"csv": table, "target": "label", "drop": ["id", "price"], "validation": 0.3}
    schedule = {"epochs": 8, "lr": 0.1, "batch_size": 20}
    trained(place / "label", classes, FCN, schedule=schedule)
    trained(place / "plain", classes, FCN, method=PLAIN)
    trained(place / "without", classes | {"validation": None}, FCN)
    prices = {"csv": table, "target": "price", "drop": ["id", "label"], "validation": 0.3}
    trained(place / "price", prices, FCN, schedule=schedule)
    return place


def brute(values: Sequence[float], coverage: float) -> float:
    """The smallest threshold among the values that answers at least a share `coverage`."""
    return min(t for t in values if sum(v <= t for v in values) / len(values) >= coverage)


def store(run: Path, **values: Any) -> None:
    """A validation.json as `bayesianize train` writes it."""
    empty: dict[str, Any] = {"aleatoric": values["total"], "epistemic": values["total"], "right": None, "error": None}
    head = {"format": "bayesianize validation", "version": 1, "samples": 20, "seed": 0}
    (run / "validation.json").write_text(json.dumps(head | empty | values))


@pytest.mark.parametrize("coverage", [0.001, 0.07, 0.1, 0.5, 0.66, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 7, 100])
def test_the_smallest_threshold_by_brute_force(n: int, coverage: float) -> None:
    random = np.random.default_rng(n)
    for values in (random.random(n), random.integers(0, 4, n).astype(float)):  # without and with ties
        assert smallest_threshold(values, coverage) == brute(values.tolist(), coverage)


@pytest.mark.parametrize("by", ["total", "epistemic"])
def test_stored_validation_sets_the_threshold(place: Path, tmp_path: Path, by: str) -> None:
    run = shutil.copytree(place / "label", tmp_path / "run")
    x = load_run(run).preparation(place / "rows.csv")
    values = np.linspace(0.1, 0.9, 8).tolist()
    spread = np.quantile(getattr(expected(run, x), by).numpy(), values).tolist()
    right = [True, True, True, False, True, False, False, True]
    store(run, task="classification", right=right, **{"total": values, by: spread})
    ended = command(run, place / "rows.csv", "--coverage", 0.5, "--by", by, "--json")
    threshold = ended.json["threshold"]
    assert threshold == sorted(spread)[3]
    wanted = f"threshold {threshold:.6g} nats: answers 50.0 % of 8 validation inputs; 75.0 % of those are right"
    assert f"{wanted}, 62.5 % of all\n" in ended.err
    assert "note" not in ended.err
    for row in ended.json["rows"]:
        assert row["answer"] == ("abstain" if row[by] > threshold else row["class"])
    assert 0 < [row["answer"] for row in ended.json["rows"]].count("abstain") < 120


def test_draws_that_agree_set_no_threshold(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "label", tmp_path / "run")
    store(run, task="classification", right=[True, False], total=[0.1, 0.5], epistemic=[0.0, 1e-8])
    ended = command(run, place / "rows.csv", "--coverage", 0.5, "--by", "epistemic")
    assert (ended.code, ended.out) == (2, "")
    assert "--by epistemic: the run's draws agree on all validation inputs" in " ".join(ended.err.split())
    assert command(run, place / "rows.csv", "--coverage", 0.5, "--by", "total").code == 0
    run = shutil.copytree(place / "price", tmp_path / "reals")  # of real targets it is a share of the sd, in any unit
    store(run, task="regression", error=[1e-9, 2e-9], total=[3e-9, 3e-9], epistemic=[1e-12, 2e-12])
    assert command(run, place / "rows.csv", "--coverage", 0.5, "--by", "epistemic").code == 0


def test_other_draws_than_the_stored_ones_are_noted(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "label", tmp_path / "run")
    store(run, task="classification", total=[0.1, 0.2], right=[True, False])
    ended = command(run, place / "rows.csv", "--coverage", 0.5, "--samples", 5)
    assert "note: the threshold was picked with 20 draws, these predictions use 5\n" in ended.err
    quiet = command(run, place / "rows.csv", "--coverage", 0.5, "--quiet")
    assert (quiet.code, quiet.err) == (0, "")


@pytest.mark.parametrize("name", ["label", "plain", "price"])
def test_without_the_file_the_recipes_data_serve(place: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(place / name, tmp_path / "run")
    ended = command(run, place / "rows.csv", "--coverage", 0.7, "--json")
    found = load_run(run)
    assert found.recipe is not None
    part = build_data(found.recipe.data).validation
    wanted = expected(run, part.inputs(), 0 if name == "plain" else None)
    values = wanted.total.double().numpy().reshape(-1)
    if name == "price":
        values = np.sqrt(values) * found.target.sd[0]  # type: ignore[union-attr]
    assert ended.json["threshold"] == pytest.approx(brute(values.tolist(), 0.7), rel=1e-5)
    assert f"{run} has no validation.json: predicting the validation data of its recipe" in ended.err
    assert (run / "validation.json").exists()
    again = command(run, place / "rows.csv", "--coverage", 0.7, "--json")
    assert again.json == ended.json
    assert "has no validation.json" not in again.err


def test_what_validation_says_about_real_targets(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "price", tmp_path / "run")
    store(run, task="regression", total=[8.0, 9.0, 10.0, 11.0], error=[3.0, -4.0, 6.0, 8.0])
    ended = command(run, place / "rows.csv", "--coverage", 0.5, "--json")
    wanted = "threshold 9: answers 50.0 % of 4 validation inputs; their RMSE is 3.536, that of all 5.59\n"
    assert wanted in ended.err
    assert ended.json["threshold"] == 9.0
    for row in ended.json["rows"]:
        assert row["answer"] == ("abstain" if row["total"] > 9 else row["mean"])


def test_without_validation_data_the_mistake_says_what_to_do(place: Path, tmp_path: Path) -> None:
    what_to_do = "give a threshold of your own with --abstain-above"
    ended = command(place / "without", place / "rows.csv", "--coverage", 0.9, "--out", tmp_path / "table.csv")
    assert ended.code == 2
    assert "not at hand: the run was trained without validation data; " + what_to_do in ended.err
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_gone_or_changed_set_no_threshold(tmp_path: Path) -> None:
    table = write_table(tmp_path / "rows.csv")
    data = {"csv": str(table), "target": "label", "drop": ["id", "price"], "validation": 0.3}
    run = trained(tmp_path / "run", data, FCN)
    new = shutil.copy(table, tmp_path / "new.csv")
    write_table(table, seed=5)
    changed = command(run, new, "--coverage", 0.9)
    assert changed.code == 2
    assert (
        "not at hand: the data have changed since the run was trained (the mean, sd or categories of 'height'); give"
        in changed.err
    )
    table.unlink()
    gone = command(run, new, "--coverage", 0.9)
    assert gone.code == 2
    assert f"not at hand: there is no file {table}; give" in gone.err
    assert not (run / "validation.json").exists()


def test_a_damaged_validation_file_is_named(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "label", tmp_path / "run")
    (run / "validation.json").write_text('{"format": "bayesianize validation"')
    ended = command(run, place / "rows.csv", "--coverage", 0.9)
    assert ended.code == 2
    assert f"{run / 'validation.json'} cannot be read" in ended.err
