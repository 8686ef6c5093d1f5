"""The library works, and draws the same, where torch has none of the private names that make it fast."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import hidden_names
import pytest
import torch
from hidden_names import CASES, engine_fold, outputs


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(one, other)


every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def hidden() -> Any:
    """What a process says from which the names are hidden."""
    command = [sys.executable, "-W", "error", str(pathlib.Path(hidden_names.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_names_are_hidden_from_bnn_alone(hidden: Any) -> None:
    assert hidden["seen"] == []
    assert hidden["torch works"]


@every_case
def test_draws_are_the_same_bit_for_bit(name: str, hidden: Any) -> None:
    for key, value in outputs(name).items():
        assert value.std(0).max() > 0
        assert same(torch.tensor(hidden["drawn"][name][key]), value), key


@pytest.fixture
def fold() -> Any:
    return engine_fold() or pytest.skip("no bnn._engine yet")


def test_the_library_knows_that_they_are_missing(fold: Any, hidden: Any) -> None:
    assert fold.FAST is True
    assert hidden["fast"] is False


@every_case
def test_the_switch_changes_no_draw(name: str, fold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = outputs(name)
    monkeypatch.setattr(fold, "FAST", False)
    for key, value in outputs(name).items():
        assert same(value, fast[key]), key
