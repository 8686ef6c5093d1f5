"""`bayesianize train --prune`."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_data import flowers, train

import bnn


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    flowers(tmp_path)
    return tmp_path


COMMAND = ("--data", "flowers.csv", "--target", "kind", "--epochs", "8", "--hidden", "16", "--out", "run")


def test_a_pruned_run(home: Path) -> None:
    ended = train(*COMMAND, "--prune", "0.5")
    assert ended.code == 0, ended.err
    run = bnn.open_run("run")
    assert "pruned      to 50 % of what can be, then 2 epochs more" in ended.out
    count = bnn.parameter_count(run.network)
    assert f"parameters  {count:,}" in ended.out
    assert f"{count:,} parameters" in ended.err  # told before it is trained
    assert "8 epochs, then 2 pruned" in ended.err
    assert run.recipe.prune == 0.5
    again = train(*COMMAND, "--prune", "0.5", "--json")
    assert again.code == 0
    assert "nothing is trained" in again.err
    assert again.json["pruned"] == {"kept": 0.5, "by": "paper", "epochs": 2}
    assert again.json["parameters"] == count


def test_everything_else_by_set(home: Path) -> None:
    ended = train(*COMMAND, "--set", 'prune={"keep": 0.25, "by": "output", "epochs": 1}', "--json")
    assert ended.code == 0, ended.err
    assert ended.json["pruned"] == {"kept": 0.25, "by": "output", "epochs": 1}


def test_mistakes(home: Path) -> None:
    ended = train(*COMMAND, "--prune", "1.5")
    assert ended.code == 2
    assert "between 0 and 1" in ended.err
    ended = train(*COMMAND, "--prune", "0.5", "--method", "deterministic")
    assert ended.code == 2
    assert "--prune is for Bayesian methods" in ended.err
    ended = train(*COMMAND, "--prune", "0.5", "--laplace", "last")
    assert ended.code != 0
    assert "is pruned, and Laplace" in ended.err
    assert not Path("run").exists()
