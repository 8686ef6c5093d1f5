"""`bayesianize train --laplace`: the summary says what was found, the run opens again, mistakes come first."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_data import flowers, train

import bnn
from bnn.nn.families.inducing import InducingBase

ARGS = ("--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--hidden", "8")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    flowers(tmp_path)
    return tmp_path


def test_a_plain_network_with_laplace() -> None:
    plain = (*ARGS, "--method", "deterministic", "--laplace", "last", "--out", "run")
    found = train(*plain, "--json").json["laplace"]
    ((name, precision),) = found["prior_precision"].items()
    told = train(*plain)
    inputs = len(bnn.open_run("run").data().train)
    assert f"Laplace     {name} (prior precision {precision:.3g}), from {inputs} training inputs" in told.out
    net = bnn.open_run("run").network
    assert [type(one).__name__ for one in net.modules() if isinstance(one, InducingBase)] == ["InducingLinear"]
    assert "Laplace" not in train(*plain, "--set", "laplace=null").out


def test_many_layers_are_told_by_their_range() -> None:
    three = ("--hidden", "8,8", "--pretrain-epochs", "0", "--rows", "2", "--cols", "2")
    told = train(*ARGS, *three, "--laplace", "all", "--out", "run")
    assert told.code == 0, told.err
    assert "Laplace     3 layers (prior precisions " in told.out


def test_mistakes_come_before_training(home: Path) -> None:
    ended = train(*ARGS, "--method", "ensemble-u", "--laplace", "last", "--out", "run")
    assert ended.code == 2
    assert "is an Ensemble-U of 5 members" in ended.err
    ended = train(*ARGS, "--method", "ffg-w", "--laplace", "last", "--out", "run")
    assert "has a posterior of the family 'ffg'" in ended.err
    assert not (home / "run").exists()
