"""The converted stage of a recipe: from a plain network to a posterior, and once more where that lost too much."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.errors import DivergenceError
from bnn._common.seeds import derived, own_randomness, seed_everything
from bnn._conversion.energy import EnergyWarning
from bnn._conversion.methods import family_of
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.global_inducing import register_global_inducing_weights_
from bnn.nn.base import pairing
from bnn.nn.limited_rank import LimitedRank
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.plain_stage import stage_of
from bnn.train.recipe import Recipe
from bnn.train.retry import Retry
from bnn.train.runs.folder import KL, RETRY, TRAIN, RunFolder
from bnn.train.settling import Comparison, held_out_losses
from bnn.train.spread import rate_factor, within_noise

REFRESH, SPREAD = 12, 18  # what a derived seed is for
# A second training: posterior noise relative to that of real targets, and the rate relative to that of the first one.
CLOSE, GENTLER = 0.1, 0.5


@dataclass
class Converted:
    """A converted network as trained.

    Args:
        candidates: validation NLL by KL weight, where it was chosen.
        retry: None where there was one attempt.
    """

    net: nn.Module
    history: History
    candidates: dict[str, float] | None = None
    retry: Retry | None = None

    @property
    def kl_weight(self) -> dict[str, Any]:
        """The KL weight that was chosen, as a change of a schedule."""
        return {} if self.candidates is None else {"kl_weight": _best(self.candidates)}


def teaching(recipe: Recipe, net: nn.Module, noise: Any) -> dict[str, Any]:
    """The plain network, before it is converted, as the teacher of `bnn.fit`; nothing where none is asked for."""
    if recipe.teacher is None:
        return {}
    options = {f"teacher_{name}": value for name, value in recipe.teacher.items()}
    return options | {"teacher": copy.deepcopy(net), "teacher_likelihood": copy.deepcopy(noise)}


def converted_stage(
    recipe: Recipe,
    net: nn.Module,
    likelihood: Any,
    data: Data,
    folder: RunFolder | None,
    before: Tensor | None,
    settings: dict[str, Any],
) -> Converted:
    """Converts a plain network and trains it; where `recipe.retry` says so, a copy of it a second time.

    Whether there is a second time follows from the first, so that a run that resumes decides the same.

    Args:
        net, likelihood: of the plain network; both are changed.
        before: the plain network's NLL of every validation input; None where there is nothing to compare with.
        settings: further arguments of `bnn.fit`.
    """
    again = copy.deepcopy((net, likelihood)) if recipe.retry and before is not None else None
    if recipe.spread is not None:
        recipe = recipe.but(schedule={"lr": recipe.schedule.lr * rate_factor(net, data, likelihood)})
    _convert(recipe, net, data, likelihood)
    history, candidates = _choose(recipe, net, data, folder, {"likelihood": likelihood, **settings})
    found = Converted(net, history, candidates)
    if again is None or before is None:
        return found
    first = Comparison.of(before, held_out_losses(net, history.likelihood, data))
    if first is None or not first.worse:
        return found
    second = closer(recipe.but(schedule=found.kl_weight))
    net, likelihood = again
    _convert(second, net, data, likelihood)
    own = {"likelihood": likelihood, **settings, "seed": recipe.seed, "out": stage_of(folder, RETRY)}
    try:
        history = fit(net, data, schedule=second.schedule, **own)
    except DivergenceError as error:
        warnings.warn(f"the first training is kept, as the second training diverged: {error}", stacklevel=3)
        return replace(found, retry=Retry(first.run, None))
    losses = held_out_losses(net, history.likelihood, data)
    assert losses is not None
    found.retry = Retry(first.run, float(losses.mean()))
    return replace(found, net=net, history=history) if found.retry.kept else found


def closer(recipe: Recipe) -> Recipe:
    """The recipe of a posterior that stays closer to the plain network."""
    spread = CLOSE if recipe.spread is None else min(CLOSE, recipe.spread)
    return recipe.but(activations=True, spread=spread, schedule={"lr": GENTLER * recipe.schedule.lr})


def _convert(recipe: Recipe, net: nn.Module, data: Data, likelihood: Any) -> None:
    method = recipe.method
    start: dict[str, Any] = {"activations": data.train} if recipe.activations and of_limited_rank(method) else {}
    if recipe.spread is not None:
        seed = derived(recipe.seed, SPREAD)
        method = within_noise(method, net, data, likelihood, recipe.spread, seed, **start)
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, REFRESH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnergyWarning)  # training follows, and mends it
            bayesianize_(net, **method, **start)
        if recipe.global_inducing is not None:
            register_global_inducing_weights_(net, **recipe.global_inducing)
        if recipe.pretrain is not None or recipe.weights is not None:
            refresh_batchnorm_(net, data)


def of_limited_rank(method: dict[str, Any]) -> bool:
    """Whether a recipe's method has layers of limited rank that keep trained weights.

    >>> of_limited_rank({"inference": "ffg-u"}), of_limited_rank({"inference": {"fc": {"inference": "ffg"}}})
    (True, False)
    """
    named = method["inference"]
    layers = list(named.values()) if isinstance(named, dict) else [{}]
    entries = [one if isinstance(one, dict) else {"inference": one} for one in layers if one is not None]
    return any(_keeps_rank(method | one) for one in entries)


def _keeps_rank(entry: dict[str, Any]) -> bool:
    family = family_of(str(entry["inference"]))
    return issubclass(pairing(family, nn.Linear), LimitedRank) and entry.get("init", "weights") == "weights"


def _choose(
    recipe: Recipe, net: nn.Module, data: Data, folder: RunFolder | None, settings: dict[str, Any]
) -> tuple[History, dict[str, float] | None]:
    """The main training; with several KL weights each from the same start, and validation NLL chooses."""
    if not recipe.kl_weights:
        history = fit(net, data, schedule=recipe.schedule, seed=recipe.seed, out=stage_of(folder, TRAIN), **settings)
        return history, None
    found: dict[str, tuple[float, History, dict[str, Tensor]]] = {}
    for weight in recipe.kl_weights:
        trained, own = copy.deepcopy(net), copy.deepcopy(settings)
        schedule = recipe.but(schedule={"kl_weight": weight}).schedule
        place = stage_of(folder, f"{KL}{weight!r}")
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
