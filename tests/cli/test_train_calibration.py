"""`bayesianize train` calibrates classes by default, says so, and can be told not to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from train_data import flowers, prices, train

import bnn

ARGS = ("--data", "coins.csv", "--target", "side", "--epochs", "2", "--pretrain-epochs", "0", "--hidden", "8")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def coins(folder: Path, rows: int = 600) -> None:
    """A CSV file of two classes, a fifth of them wrong."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    right = (x[:, 0] > 0) ^ (rng.random(rows) < 0.2)
    lines = [f"{a:.4f},{b:.4f},{'heads' if one else 'tails'}" for (a, b), one in zip(x, right, strict=True)]
    (folder / "coins.csv").write_text("\n".join(["a,b,side", *lines]) + "\n")


def test_by_default_and_not(home: Path) -> None:
    coins(home)
    ended = train(*ARGS, "--validation", "0.2", "--out", "run", "--json")
    assert ended.code == 0, ended.err
    t = ended.json["temperature"]
    assert t == bnn.open_run("run").temperature != 1
    again = train(*ARGS, "--validation", "0.2", "--out", "run")
    inputs = len(bnn.open_run("run").validation.total)
    assert f"calibrated  logits / {t:.3g}, fitted to {inputs} validation inputs" in again.out
    off = train(*ARGS, "--validation", "0.2", "--out", "run", "--no-calibrate")
    assert off.code == 0, off.err
    assert "calibrated" not in off.out
    assert bnn.open_run("run").temperature == 1
    told = train("run/recipe.json", "--out", "from-file", "--json")  # the file says no
    assert (told.json["temperature"], told.json["recipe"]["calibrate"]) == (1.0, False)


def test_few_rows_are_told_in_one_line(home: Path) -> None:
    flowers(home)
    args = ("--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--pretrain-epochs", "0", "--out", "few")
    ended = train(*args)
    assert ended.code == 0, ended.err
    line = "calibrated  no: the temperature is left at 1, 9 validation inputs are too few, it takes 100"
    assert ended.out.splitlines().count(line) == 1
    assert "temperature" not in ended.err
    asked = train(*args, "--calibrate")
    assert asked.code == 2
    assert "--calibrate: no temperature can be fitted, as 9 validation inputs are too few" in asked.err


def test_real_targets_have_none(home: Path) -> None:
    prices(home)
    args = ("--data", "prices.csv", "--target", "price", "--epochs", "1", "--pretrain-epochs", "0", "--out", "real")
    ended = train(*args, "--json")
    assert (ended.json["temperature"], ended.json["calibrated"]) == (None, None)
    asked = train(*args, "--calibrate")
    assert asked.code == 2
    assert "--calibrate: no temperature can be fitted, as the outputs are no logits" in asked.err
