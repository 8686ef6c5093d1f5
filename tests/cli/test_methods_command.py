"""`bayesianize methods`: every method as text, one of them in full, all as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bnn._conversion.methods import METHODS
from bnn.cli.app import run


def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods"]) == 0
    out = capsys.readouterr().out
    for one in METHODS.values():
        assert f"{one.name} ({one.title}): {one.about}" in out
        assert f"  parameters     {one.formula}\n" in out
        assert f"  multiplies     {one.multiplies}\n" in out
        assert one.when in out


def test_one_of_them_in_any_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "FFG_U"]) == 0
    out = capsys.readouterr().out
    assert "max_lamda=0.03" in out
    assert "Ensemble" not in out
    assert "inducing_rows, inducing_cols" in out


def test_one_without_a_size_names_no_options_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "k-tied"]) == 0
    assert "inducing_rows" not in capsys.readouterr().out


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(found) == list(METHODS)
    assert found["ensemble-u"]["options"] == METHODS["ensemble-u"].options


def test_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "ffg-v"]) == 2
    assert "error: unknown method 'ffg-v' (did you mean 'ffg-" in capsys.readouterr().err
