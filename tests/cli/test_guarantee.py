"""`bayesianize train --guarantee` and `predict --guarantee`, on tables of a newcomer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from predict_runs import command, command_of
from train_data import flowers, prices, train

import bnn

QUICK = ("--epochs", 2, "--pretrain-epochs", 10, "--hidden", 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarantee")
    table = prices(folder, rows=160)
    ended = train("--data", table, "--target", "price", "--guarantee", "--out", folder / "run", *QUICK)
    assert ended.code == 0, ended.err
    assert "77 training, 11 validation, 22 test, 50 guarantee inputs" in ended.err
    assert "guarantee   by 50 inputs that were set aside, for `predict`" in ended.out
    assert f"bayesianize predict {folder / 'run'} new.csv --guarantee 0.9\n" in ended.out
    return folder / "run"


def test_intervals_say_how_many_rows_stand_behind_them(run: Path) -> None:
    table = run.parent / "prices.csv"
    ended = command(run, table, "--guarantee", 0.9, "--json")
    assert ended.code == 0, ended.err
    assert (
        "with 50 inputs set aside, a new one from the same source is in its 90 % interval with a probability of at"
        in ended.err
    )
    about = ended.json["guarantee"]
    assert f"guarantee: {about.pop('statement')}\n" in ended.err
    assert about == {"level": 0.9, "rows": 50, "rows_of_each": {}, "method": "normalized", "by_class": False}
    data = bnn.open_run(run).data()
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    assert data.target is not None
    aside = data.target.own_units(data.guarantee.y).double().numpy()  # (50, 1), rounded to float32 before
    of_file = np.loadtxt(table, delimiter=",", skiprows=1)[:, 1]
    chosen = np.abs(aside - of_file).min(axis=0) < 5e-5
    rows = [row for row, inside in zip(ended.json["rows"], chosen, strict=True) if inside]
    y = of_file[chosen].tolist()
    inside = sum(row["low"] - 1e-3 <= one <= row["high"] + 1e-3 for row, one in zip(rows, y, strict=True))
    assert (len(rows), inside) == (50, 46)  # ceil(51 * 0.9) of those that were set aside


def test_where_some_are_left_unanswered_it_says_that_all_count(run: Path) -> None:
    table, said = (
        run.parent / "prices.csv",
        "; it holds over all inputs, answered or not: among those that are answered",
    )
    for abstain in (("--coverage", 0.5), ("--abstain-above", 3)):
        ended = command(run, table, "--guarantee", 0.9, *abstain, "--json")
        assert ended.code == 0, ended.err
        assert said in ended.err
        assert said in ended.json["guarantee"]["statement"]
    assert said not in command(run, table, "--guarantee", 0.9).err


def test_labelled_rows_of_ones_own_measure_it(run: Path, tmp_path: Path) -> None:
    """Coverage after is that of the intervals that `predict` gives for the same rows."""
    table = prices(tmp_path, rows=100)
    ended = command_of("evaluate", run, "--test", table, "--resamples", 30, "--no-time", "--quiet", "--json")
    assert ended.code == 0, ended.err
    after = next(iter(ended.json.values()))["guarantee"]["after"]
    rows = command(run, table, "--guarantee", 0.9, "--json").json["rows"]
    y = np.loadtxt(table, delimiter=",", skiprows=1)[:, 1]
    inside = np.mean([row["low"] <= one <= row["high"] for row, one in zip(rows, y, strict=True)])
    assert {one["level"]: one["covered"]["value"] for one in after}[0.9] == pytest.approx(inside)


def test_too_few_rows_for_the_level(run: Path) -> None:
    ended = command(run, run.parent / "prices.csv", "--guarantee", 0.99)
    assert ended.code == 2
    wanted = "--guarantee 0.99: a guarantee at level 0.99 takes 99 calibration rows, and there are 50: set more aside"
    assert wanted in ended.err


def test_other_draws_have_no_guarantee(run: Path) -> None:
    ended = command(run, run.parent / "prices.csv", "--guarantee", 0.9, "--samples", 3)
    assert ended.code == 2
    assert "of 20 draws with seed 0: leave --samples 3 out" in ended.err


def test_too_little_data(tmp_path: Path) -> None:
    table = prices(tmp_path, rows=99)
    ended = train("--data", table, "--target", "price", "--guarantee", "--out", tmp_path / "run", *QUICK)
    assert ended.code == 2
    assert "a guarantee would set 50 of 99 inputs aside, more than half" in ended.err
    assert "give their number yourself, as --set data.guarantee=20 (9 are" in ended.err
    assert not (tmp_path / "run").exists()
    few = tmp_path / "few.csv"
    few.write_text("\n".join(table.read_text().splitlines()[:21]) + "\n")
    ended = train("--data", few, "--target", "price", "--guarantee", "--out", tmp_path / "run", *QUICK)
    assert "as --set data.guarantee=10 (9 are the fewest for a level of 0.9)" in ended.err
    own = ("--set", "data.guarantee=20", "--out", tmp_path / "run", *QUICK)
    ended = train("--data", table, "--target", "price", *own)
    assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]["guarantee"] == 20
    assert command(tmp_path / "run", table, "--guarantee", 0.95).code == 0


def test_sets_of_classes_and_a_run_without(tmp_path: Path) -> None:
    table = flowers(tmp_path, rows=150)
    for name, more in (("with", ["--guarantee"]), ("without", [])):
        ended = train("--data", table, "--target", "kind", *more, "--out", tmp_path / name, *QUICK)
        assert ended.code == 0, ended.err
    ended = command(tmp_path / "with", table, "--guarantee", 0.9, "--out", tmp_path / "answers.csv")
    assert ended.code == 0, ended.err
    assert "is in its 90 % set of classes with a probability of at least 90 %" in ended.err
    header, *lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert header == "input,class,probability,total,aleatoric,epistemic,set"
    assert all(set(line.split(",")[-1].split("; ")) <= {"iris", "lily", "rose", ""} for line in lines)
    ended = command(tmp_path / "without", table, "--guarantee", 0.9)
    assert ended.code == 2
    assert "--guarantee needs inputs that were set aside before training, and this run has none" in ended.err


def test_what_is_suggested_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five inputs are too few for 0.9; `next` and the promise name a level that they allow."""
    monkeypatch.setattr("bnn.evaluation.interval_promise.GAP", -1.0)  # whatever is found is a broken promise
    monkeypatch.setattr("bnn.evaluation.interval_promise.ALARMS", 3.0)  # z = 0
    table, run = prices(tmp_path, rows=99), tmp_path / "run"
    ended = train("--data", table, "--target", "price", "--set", "data.guarantee=5", "--out", run, *QUICK)
    assert ended.code == 0, ended.err
    assert "guarantee   by 5 inputs that were set aside, for `predict --guarantee 0.8`: too few for 0.9" in ended.out
    assert "new.csv --guarantee 0.8\n" in ended.out
    assert "--guarantee 0.9" not in ended.out
    said = "`bayesianize predict --guarantee 0.8` (guarantee=0.8 in Python) gives intervals that hold"
    assert said in " ".join(ended.out.split())
    assert said in command_of("evaluate", run, "--no-time", "--resamples", 10).out
    assert command(run, table, "--guarantee", 0.9).code == 2
    assert command(run, table, "--guarantee", 0.8).code == 0


def patients(folder: Path, rows: int = 1000) -> Path:
    """A CSV file: `diagnosis`, of which two classes are rare and hardly told from the first."""
    rng = np.random.default_rng(0)
    lines = ["pressure,sugar,diagnosis"]
    for label in rng.choice(3, rows, p=[0.82, 0.12, 0.06]).tolist():
        pressure, sugar = rng.normal([0.9 * label, 0.4 * label])
        lines.append(f"{pressure:.4f},{sugar:.4f},{['healthy', 'mild', 'severe'][label]}")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return folder / "patients.csv"


def test_rare_classes(tmp_path: Path) -> None:
    """With class weights probabilities are not those of the data; coverage of each class, and a guarantee of each."""
    table = patients(tmp_path)
    more = ("--set", "data.guarantee=300", "--class-weights", "balanced", *QUICK)
    kept = {}
    for name, by_class in (("all", ()), ("each", ("--guarantee-by-class",))):
        run = tmp_path / name
        ended = train("--data", table, "--target", "diagnosis", *more, *by_class, "--out", run)
        assert ended.code == 0, ended.err
        said = " ".join(ended.out.split())
        assert "'healthy' has a probability of" in said
        assert "(without class_weights= in Python) for those of the data as they are" in said
        assert ("set aside (healthy 2" in said) == bool(by_class)
        measured = command_of("evaluate", run, "--no-time", "--resamples", 10)
        assert "guaranteed sets hold, of class  test inputs  at 50 %  at 80 %  at 90 %" in measured.out
        stored = json.loads((run / "evaluation.json").read_text())
        assert stored["promise"]["verdict"] != "as promised"
        assert {one["name"] for one in stored["promise"]["classes"]} >= {"healthy", "severe"}
        kept[name] = stored["guarantee"]["classes"]
        sizes = [levels[-1]["inputs"] for levels in kept[name].values()]
        assert list(kept[name]) == ["healthy", "mild", "severe"]
        held = [levels[-1]["covered"]["value"] for levels in kept[name].values()]
        of_all = stored["guarantee"]["after"][-1]["covered"]["value"]
        assert np.average(held, weights=sizes) == pytest.approx(of_all)
        ended = command(run, table, "--guarantee", 0.9, "--json")
        assert ended.code == 0, ended.err
        assert ended.json["guarantee"]["by_class"] == bool(by_class)
        assert ("not within each class" in ended.err) != bool(by_class)
    assert kept["all"] != kept["each"]


def test_within_every_class_of_what(tmp_path: Path) -> None:
    table = flowers(tmp_path)
    ended = train("--data", table, "--target", "kind", "--guarantee-by-class", "--out", tmp_path / "run", *QUICK)
    assert ended.code == 2
    assert "--guarantee-by-class needs inputs that are set aside" in ended.err
    assert "give --guarantee, too" in ended.err
    assert not (tmp_path / "run").exists()


def test_targets_of_which_some_are_missing(tmp_path: Path) -> None:
    """What was set aside is all of it, not what is known of the target with the most holes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    loss = [f"{one:.4f}" if known else "" for one, known in zip(x, rng.random(300) < 0.6, strict=True)]
    lines = [f"{one:.4f},{2 * one + rng.normal():.4f},{other}" for one, other in zip(x, loss, strict=True)]
    (tmp_path / "engines.csv").write_text("\n".join(["size,power,loss", *lines]) + "\n")
    more = ("--target", "power,loss", "--guarantee", "--out", tmp_path / "run", *QUICK)
    ended = train("--data", tmp_path / "engines.csv", *more, "--json")
    assert ended.code == 0, ended.err
    found = ended.json["guarantee"]
    known = found["rows_of_each"].pop("loss")
    assert 15 < known < 45
    assert found == {"inputs": 50, "rows_of_each": {"power": 50}, "by_class": False, "level": 0.9}
    again = train("--data", tmp_path / "engines.csv", *more)
    assert f"guarantee   by 50 inputs that were set aside (power 50, loss {known}), for `predict`" in again.out
    ended = command(tmp_path / "run", tmp_path / "engines.csv", "--guarantee", 0.9)
    assert f"with 50 inputs set aside (power 50, loss {known}), a new one from the same source" in ended.err
    measured = command_of("evaluate", tmp_path / "run", "--no-time", "--resamples", 10)
    assert f"with 50 inputs set aside (power 50, loss {known}), a new one from the same source" in measured.out
