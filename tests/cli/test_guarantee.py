"""`bayesianize train --guarantee` and `predict --guarantee`, on tables of a newcomer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from predict_runs import command
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
    assert f"bayesianize predict {folder / 'run'} {table} --guarantee 0.9" in ended.out
    return folder / "run"


def test_intervals_say_how_many_rows_stand_behind_them(run: Path) -> None:
    table = run.parent / "prices.csv"
    ended = command(run, table, "--guarantee", 0.9, "--json")
    assert ended.code == 0, ended.err
    assert (
        "with 50 inputs set aside, a new one from the same source is in its 90 % interval with a probability of at"
        in ended.err
    )
    assert ended.json["guarantee"] == {"level": 0.9, "rows": 50, "method": "normalized"}
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
