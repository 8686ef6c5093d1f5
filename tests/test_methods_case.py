"""The case that runs every method on the digits: it has all of them, as the registry has them, and they hold."""

from __future__ import annotations

import importlib
import json
import pathlib
import statistics
import types
from typing import Any

import pytest

from bnn._conversion.methods import METHODS
from bnn.train import Recipe

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("experiments.methods")


@pytest.fixture
def stored(methods: types.ModuleType) -> dict[str, list[dict[str, Any]]]:
    runs = json.loads((ROOT / "experiments" / "results" / "methods.json").read_text())["runs"].values()
    return {name: [run["metrics"] for run in runs if run["settings"]["method"] == name] for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_recipes_are_the_registrys(methods: types.ModuleType, name: str) -> None:
    made, method = methods.recipe({"method": name, "seed": 3}), METHODS[name]
    preset = Recipe.preset("ours/digits-from-trained")
    assert (made.net, made.data, made.seed, made.members) == (preset.net, preset.data, 3, method.networks)
    if method.family == "deterministic":
        assert (made.bayesian, made.schedule, made.pretrain) == (False, preset.pretrain, None)
        return
    assert made.schedule == type(made.schedule).of(
        preset.schedule.to_dict() | {"lr": method.lr, "kl_weight": method.kl_weight, "samples": method.members}
    )
    assert made.pretrain == preset.pretrain


def test_a_method_for_one_layer_is_on_the_last(methods: types.ModuleType) -> None:
    assert methods.recipe({"method": "fcg-w", "seed": 0}).method == {
        "inference": {"fc.Linear1": {"inference": "fcg-w"}}
    }
    other = methods.recipe({"method": "k-tied", "seed": 0, "training": "1e-3, 10 epochs", "plain_epochs": 7})
    assert (other.pretrain.lr, other.pretrain.epochs, other.schedule.epochs) == (1e-3, 7, 10)
    assert other.schedule.lr == METHODS["k-tied"].lr


def test_losses_count_the_weighted_kl_per_input(methods: types.ModuleType) -> None:
    epoch = {"data": 0.5, "kl_scale": 0.1, "kl_u": 20.0, "kl_lamda": 30.0}
    assert methods._loss(epoch, 100) == pytest.approx(0.5 + 0.1 * 50 / 100)


def test_the_case_has_every_method(methods: types.ModuleType) -> None:
    case = importlib.import_module("experiments.case").Case.named("methods")
    assert list(dict.fromkeys(axes["method"] for axes in case.runs())) == list(METHODS)


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if one.family != "deterministic"])
def test_every_bayesian_method_is_accurate_learns_and_notices(stored: dict[str, Any], name: str) -> None:
    runs = stored[name]
    assert len(runs) == 3, f"python -m experiments.run methods --only method={name}"
    assert statistics.fmean(run["accuracy"] for run in runs) >= 0.95
    for run in runs:
        assert run["last_loss"] < run["first_loss"]
        assert all(run[f"mutual_information_{kind}"] > run["mutual_information"] for kind in ("letters", "noise"))


def test_plain_networks_know_nothing_of_it(stored: dict[str, Any]) -> None:
    assert all(run["mutual_information"] == 0 for run in stored["deterministic"])
