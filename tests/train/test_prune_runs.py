"""Pruning at the end of training: by recipes and `bayesianize train`; the same again, refused early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import blobs, same

import bnn
from bnn._common.seeds import derived
from bnn.data import Data, Part
from bnn.nn.pruning import masked
from bnn.train import Recipe, Schedule, loop, run_recipe
from bnn.train.execute import TUNE
from bnn.train.prune_options import CRITERIA, prune_options
from bnn.train.runs.folder import RunFolder, check_free

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}
METHOD = {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3}


def classes() -> Data:
    x, y = blobs(300)
    held = Part(x[180:], y[180:])
    return Data("blobs", "classification", Part(x[:180], y[:180]), validation=held, classes=("a", "b", "c"))


def recipe(**changes: Any) -> Recipe:
    one = Recipe({"name": "digits"}, {"name": "fcn", "hidden": [8]}, METHOD)
    schedule = {"epochs": 3, "batch_size": 60, "lr": 0.01, "warmup": 1, "anneal": 1}
    return one.but(schedule=schedule).but(**({"prune": {"keep": 0.5, "epochs": 2}} | changes))


@pytest.mark.parametrize("by", ["paper", "output"])
def test_a_run_is_training_pruning_and_training(by: str) -> None:
    data = classes()
    options = {"keep": 0.5, "epochs": 2, "by": by}
    one = run_recipe(recipe(prune=options, calibrate=False), data=data, **QUIET)
    by_hand = run_recipe(recipe(prune=None, calibrate=False), data=data, **QUIET)
    whole = bnn.parameter_count(by_hand.network)
    bnn.prune_(by_hand.network, 0.5, by, activations=data.train if by == "output" else None)
    schedule = Schedule(epochs=2, batch_size=60, lr=0.01)
    tuned = bnn.fit(by_hand.network, data, schedule=schedule, seed=derived(0, TUNE), **QUIET)
    assert same(one.network, by_hand.network)
    assert bnn.parameter_count(one.network) < whole
    assert [epoch["data"] for epoch in one.history.tuned.epochs] == [epoch["data"] for epoch in tuned.epochs]
    assert [epoch["kl_scale"] for epoch in one.history.tuned.epochs] == [1, 1]
    assert len(one.history.epochs) == 3


def test_a_finished_run_opens_again(tmp_path: Path) -> None:
    one = run_recipe(recipe(), tmp_path / "run", data=classes(), **QUIET)
    opened = bnn.open_run(tmp_path / "run")
    assert same(opened.network, one.network)
    assert opened.temperature == one.temperature != 1
    assert opened.recipe.prune == {"keep": 0.5, "epochs": 2}
    assert [len(opened.history.epochs), len(opened.history.tuned.epochs)] == [3, 2]
    assert list(RunFolder(tmp_path / "run").training()) == ["prune", "train"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tuned"]["stopped"] == "finished"


class PowerCutError(Exception):
    """In the place of one."""


@pytest.mark.parametrize("number", [1, 8, 10, 12, 14, 15])
def test_a_run_that_is_cut_off_anywhere_ends_with_the_same_bits(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 steps of training and 6 after pruning: before, at and after the change."""
    data, whole = classes(), run_recipe(recipe(), data=classes(), **QUIET)
    take, taken = loop.Loop._take_step, []

    def cut(self: Any, *args: Any) -> None:
        taken.append(None)
        if len(taken) == number:
            raise PowerCutError
        take(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_take_step", cut)
        with pytest.raises(PowerCutError):
            run_recipe(recipe(), tmp_path / "run", data=data, save_every=0, **QUIET)
    again = run_recipe(recipe(), tmp_path / "run", data=data, save_every=0, **QUIET)
    assert same(again.network, whole.network)
    assert again.temperature == whole.temperature
    assert same(run_recipe(recipe(), tmp_path / "run", data=data, **QUIET).network, whole.network)


def test_what_may_change_in_a_folder(tmp_path: Path) -> None:
    data, folder = classes(), RunFolder(tmp_path / "run")
    run_recipe(recipe(prune=None), folder, data=data, **QUIET)
    check_free(folder, recipe())  # a finished run may be pruned
    pruned = run_recipe(recipe(prune=0.5), folder, data=data, **QUIET)
    assert len(pruned.history.tuned.epochs) == 1
    assert same(pruned.network, run_recipe(recipe(prune=0.5), data=data, **QUIET).network)
    with pytest.raises(ValueError, match=r"prune was 0.5, is now 0.25"):
        check_free(folder, recipe(prune=0.25))
    with pytest.raises(ValueError, match=r"schedule.epochs was 3, is now 4, but what was trained has been pruned"):
        check_free(folder, recipe(prune=0.5).but(schedule={"epochs": 4}))


def test_without_training_on_and_in_an_ensemble() -> None:
    one = run_recipe(recipe(members=2, prune={"keep": 0.25, "epochs": 0}), data=classes(), **QUIET)
    assert one.history.tuned is None
    twin = run_recipe(recipe(members=2, prune=None), data=classes(), **QUIET).network
    assert bnn.parameter_count(one.network) == bnn.parameter_count(twin, keep=0.25)


def test_the_chosen_kl_weight_is_used() -> None:
    one = run_recipe(recipe(kl_weights=(1.0, 0.1), prune={"keep": 0.5, "epochs": 1}), data=classes(), **QUIET)
    weight = one.recipe.schedule.kl_weight
    assert one.history.tuned.last["kl_scale"] == weight == float(min(one.candidates, key=one.candidates.get))


def test_a_recipe_says_how() -> None:
    for value in (0.5, 1, {"keep": 0.25, "by": "output", "epochs": 0}, None):
        assert Recipe.from_dict(json.loads(json.dumps(recipe(prune=value).to_dict()))).prune == value
    assert prune_options(0.5, 200) == (0.5, "paper", 50)  # as in the paper
    assert prune_options({}, 2) == (0.5, "paper", 1)
    assert bnn.prune.CRITERIA == CRITERIA


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "half", {"keep": None}, float("nan")])
def test_bad_fractions(value: Any) -> None:
    with pytest.raises(ValueError, match="prune must be the fraction to keep, between 0 and 1"):
        recipe(prune=value)


def test_other_mistakes_are_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prune: unknown 'kep'.*expected some of \['keep', 'by', 'epochs'\]"):
        recipe(prune={"kep": 0.5})
    with pytest.raises(ValueError, match="prune: by"):
        recipe(prune={"by": "size"})
    with pytest.raises(ValueError, match="prune: epochs"):
        recipe(prune={"epochs": -1})
    with pytest.raises(ValueError, match="prune needs a Bayesian method"):
        recipe(method={"inference": "deterministic"})
    with pytest.raises(ValueError, match="nothing can be pruned"):
        run_recipe(recipe(method={"inference": "fcg"}), tmp_path / "run", data=classes(), **QUIET)
    with pytest.raises(ValueError, match="is pruned, and Laplace"):
        run_recipe(recipe(laplace="last"), tmp_path / "run", data=classes(), **QUIET)
    assert not list(tmp_path.rglob("checkpoint*"))


def test_masks_are_where_they_belong() -> None:
    one = run_recipe(recipe(prune=0.5), data=classes(), **QUIET)
    layers = [layer for layer in one.network.modules() if isinstance(layer, bnn.nn.base.BayesianLayer)]
    assert all(set(masked(layer)) <= {"z_row", "z_col"} for layer in layers)
    assert any(bool((layer.z_row == 0).any()) for layer in layers)
    assert torch.isfinite(bnn.kl_divergence(one.network))
