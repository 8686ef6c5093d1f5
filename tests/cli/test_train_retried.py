"""A run that is worse than its plain network is trained again, from the command line: what is said, and when not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from train_data import train

import bnn
from bnn.cli.training.run_summary import lines

QUICK = ("--pretrain-epochs", 60, "--hidden", "16", "--epochs", 2)
# a posterior as wide as the weights, and two epochs to mend it
LOSES = ("--lr", 0.02, "--set", "spread=50", "--set", "method.init_lamda=1", "--set", "method.max_lamda=1")


def waves(folder: Path, rows: int = 600) -> Path:
    """A CSV file: y = sin(2 a + b), without noise."""
    a, b = np.random.default_rng(0).uniform(-1, 1, size=(2, rows))
    table = ["a,b,y", *(f"{u:.6f},{v:.6f},{np.sin(2 * u + v):.6f}" for u, v in zip(a, b, strict=True))]
    path = folder / "waves.csv"
    path.write_text("\n".join(table) + "\n")
    return path


@pytest.mark.parametrize("retry", [True, False])
def test_what_is_said_of_a_run_that_was_worse(retry: bool, tmp_path: Path) -> None:
    more = ("--json",) if retry else ("--json", "--no-retry")
    ended = train("--data", waves(tmp_path), "--target", "y", *QUICK, *LOSES, *more, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    said = [line for line in lines(found) if line.startswith("retried")]
    assert found["recipe"]["retry"] is retry
    if not retry:
        assert (found["retry"], said, found["plain"]["worse"]) == (None, [], True)
        return
    first, second = found["retry"]["first"], found["retry"]["second"]
    assert found["retry"]["kept"] is (second < first)
    assert found["retry"]["kept"]
    assert found["plain"]["run"] == pytest.approx(second)
    assert said == [
        "retried     with less noise, as the first training was clearly worse than the plain network: "
        f"NLL {second:.5g} instead of {first:.5g}, kept"
    ]
    assert bnn.open_run(tmp_path / "run").retry.kept


def test_real_targets_start_from_activations_and_may_be_retried(tmp_path: Path) -> None:
    ended = train("--data", waves(tmp_path), "--target", "y", "--json", *QUICK, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    recipe = json.loads(ended.out)["recipe"]
    assert (recipe["activations"], recipe["retry"], recipe["spread"]) == (True, True, 0.5)
