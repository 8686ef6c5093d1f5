"""Carrying out a recipe, stage by stage, each of which goes on where it stopped."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.atomic import write_atomically
from bnn._common.errors import DivergenceError
from bnn._common.seeds import derived, own_randomness, seed_everything
from bnn._common.text import listed
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.ensemble import Ensemble
from bnn.files import load_
from bnn.global_inducing import register_global_inducing_weights_
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.build import build_data, build_net
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.outcome import Outcome
from bnn.train.recipe import Recipe
from bnn.train.schedule import ADDED

LATER = ("method", "schedule", "kl_weights", "global_inducing")  # what pretraining does not depend on
MAY_CHANGE = ("name", "about", "ours", "schedule.epochs", "schedule.patience")
BUILD, MEMBER, REFRESH = 10, 11, 12  # what a derived seed is for


def run_recipe(
    recipe: Recipe, out: str | os.PathLike[str] | None = None, *, data: Data | None = None, **settings: Any
) -> Outcome:
    """Carries out a recipe; with `out`, started again, it goes on where it stopped.

    Args:
        out: the run's folder: one folder of `bnn.fit` per stage, then `net.safetensors` and `run.json`, which
            `load_run` reads.
        data: the data set, where it is at hand already; None builds it as the recipe says.
        settings: further arguments of `bnn.fit` that do not change the result: progress, save_every, devices, ....
    """
    data = build_data(recipe.data) if data is None else data
    folder = None if out is None else os.fspath(out)
    _check_folder(folder, recipe)
    likelihood = likelihoods.for_task(recipe.likelihood, data.task)
    outputs = data.out_features * likelihood.outputs_per_target
    net = _built(recipe, data, outputs)
    _check_stages(recipe, net, data)
    settings = {"likelihood": likelihood, **settings}
    if recipe.pretrain is not None:
        _train_plain(recipe, net, data, recipe.pretrain, _inside(folder, "pretrain"), settings)
    if recipe.bayesian:
        _convert(recipe, net, data)
        history, candidates = _choose(recipe, net, data, folder, settings)
        chosen = recipe if candidates is None else recipe.but(schedule={"kl_weight": _best(candidates)})
    else:
        history = _train_plain(recipe, net, data, recipe.schedule, _inside(folder, "train"), settings)
        chosen, candidates = recipe, None
    more = {"recipe": chosen, "history": history, "candidates": candidates}
    outcome = Outcome.of(net, data, history.likelihood, outputs, **more)
    if folder is not None and _first_process():
        outcome.write(folder)
    return outcome


def _check_stages(recipe: Recipe, net: nn.Module, data: Data) -> None:
    """Finds a mistake in a later stage before hours go into an earlier one."""
    schedules = [one for one in (recipe.pretrain, recipe.schedule) if one is not None]
    if data.validation is None and any(one.patience is not None for one in schedules):
        raise ValueError('patience needs validation data: data = {..., "validation": 0.1}')
    if data.validation is None and recipe.kl_weights:
        raise ValueError('choosing the KL weight needs validation data: data = {..., "validation": 0.1}')
    if recipe.bayesian and recipe.pretrain is not None:
        with own_randomness(torch.device("cpu")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again when it is done
            trial = copy.deepcopy(net)
            bayesianize_(trial, **recipe.method)
            if recipe.global_inducing is not None:
                register_global_inducing_weights_(trial, **recipe.global_inducing)


def _first_process() -> bool:
    """Whether this is the only process, or the first of several."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def _built(recipe: Recipe, data: Data, outputs: int) -> nn.Module:
    """The plain network or ensemble at its start."""
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, BUILD))
        net = build_net(recipe.net, data.in_shape, outputs)
        net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    if recipe.weights is not None:
        load_(net, recipe.weights)
    return net


def _train_plain(
    recipe: Recipe, net: nn.Module, data: Data, schedule: Any, folder: str | None, settings: dict[str, Any]
) -> History:
    """Maximum likelihood: together, or every member of an ensemble alone with its own seed."""
    if not isinstance(net, Ensemble) or recipe.together:
        return fit(net, data, schedule=schedule, seed=recipe.seed, out=folder, **settings)
    histories = []
    for i, member in enumerate(net.members):
        own = settings | {"likelihood": copy.deepcopy(settings["likelihood"])}
        seed, place = derived(recipe.seed, MEMBER, i), _inside(folder, f"member{i}")
        histories.append(fit(member, data, schedule=schedule, seed=seed, out=place, **own))
    return replace(histories[-1], likelihood=_shared([one.likelihood for one in histories]))


def _shared(noises: list[Any]) -> Any:
    """One likelihood for all members, where they have learned a noise each."""
    first = noises[0]
    return first.pooled(noises) if isinstance(first, likelihoods.Likelihood) else first


def _convert(recipe: Recipe, net: nn.Module, data: Data) -> None:
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, REFRESH))
        bayesianize_(net, **recipe.method)
        if recipe.global_inducing is not None:
            register_global_inducing_weights_(net, **recipe.global_inducing)
        if recipe.pretrain is not None or recipe.weights is not None:
            refresh_batchnorm_(net, data)


def _choose(
    recipe: Recipe, net: nn.Module, data: Data, folder: str | None, settings: dict[str, Any]
) -> tuple[History, dict[str, float] | None]:
    """The main training; with several KL weights each from the same start, and validation NLL chooses."""
    if not recipe.kl_weights:
        history = fit(net, data, schedule=recipe.schedule, seed=recipe.seed, out=_inside(folder, "train"), **settings)
        return history, None
    found: dict[str, tuple[float, History, dict[str, Tensor]]] = {}
    for weight in recipe.kl_weights:
        trained, own = copy.deepcopy(net), copy.deepcopy(settings)
        schedule = recipe.but(schedule={"kl_weight": weight}).schedule
        place = _inside(folder, f"kl_{weight!r}")
        try:
            history = fit(trained, data, schedule=schedule, seed=recipe.seed, out=place, **own)
        except DivergenceError as error:
            warnings.warn(f"KL weight {weight:g} is left out, its training diverged: {error}", stacklevel=3)
            continue
        epoch = history.epochs[-1 if history.best is None else history.best]
        found[repr(weight)] = (epoch["validation_nll"], history, trained.state_dict())
    if not found:
        raise DivergenceError(f"training diverged with every KL weight of {list(recipe.kl_weights)}: try a smaller lr")
    scores = {weight: score for weight, (score, _, _) in found.items()}
    _, history, state = found[repr(_best(scores))]
    net.load_state_dict(state)
    return history, scores


def _best(candidates: dict[str, float]) -> float:
    return float(min(candidates, key=lambda weight: candidates[weight]))


def _inside(folder: str | None, name: str) -> str | None:
    return None if folder is None else os.path.join(folder, name)


def _check_folder(folder: str | None, recipe: Recipe) -> None:
    """One folder, one recipe: what is there must be of the same one."""
    if folder is None or not _first_process():
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "recipe.json")
    text = json.dumps(recipe.to_dict(), indent=1)
    if not os.path.exists(path):
        write_atomically(text.encode(), path)
        return
    with open(path, encoding="utf-8") as file:
        before = json.load(file)
    different = differences(before, json.loads(text))
    if not begun(folder, ""):  # it ended before its first checkpoint: nothing is lost
        different = []
    elif not begun(folder):  # pretraining alone: what comes after it may still change
        different = [one for one in different if not one.startswith(LATER)]
    if different:
        raise ValueError(f"{folder} holds a run of another recipe: {listed(different)}; give this one another folder")
    write_atomically(text.encode(), path)  # more epochs, another description


def begun(folder: str, *stages: str) -> bool:
    """Whether a stage (by default the main training) has come as far as a checkpoint."""
    starts = stages or ("train", "kl_")
    found = (place.relative_to(folder).as_posix() for place in pathlib.Path(folder).rglob("checkpoint*.safetensors"))
    return any(place.startswith(starts) for place in found)


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two recipes, one line per value; what may change when a run goes on is left out."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        one, other, place = before.get(name), now.get(name), prefix + name
        added = name in ADDED and name not in before
        if one == other or place in MAY_CHANGE or added:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{place}.")
        else:
            found.append(f"{place} was {one!r}, is now {other!r}")
    return found
