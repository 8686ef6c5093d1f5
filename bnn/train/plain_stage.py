"""The plain stage of a recipe: the network before it is converted, and the choice of its likelihood."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.seeds import derived, own_randomness, seed_everything
from bnn._engine.temperature import forget_temperature_
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.data.forms import batches_in_order
from bnn.ensemble import Ensemble
from bnn.files import load_
from bnn.global_inducing import register_global_inducing_weights_
from bnn.likelihoods.registry import AUTO, CHOICE
from bnn.prune import prune_
from bnn.teacher import Teacher
from bnn.train.build import build_net
from bnn.train.class_weights import for_data
from bnn.train.cross_fit import Folds, Trained, cross_fit
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.laplace import LaplaceStage
from bnn.train.monitor import enough
from bnn.train.prune_options import prune_options
from bnn.train.recipe import Recipe
from bnn.train.runs.folder import MEMBER, PRETRAIN, TRAIN, RunFolder
from bnn.train.schedule import Schedule
from bnn.train.settling import BATCH, NoiseStage, held_out_losses, settle_, thinned

BUILD, ALONE, NOISE, FOLD = 10, 11, 17, 19  # what a derived seed is for
MACHINE = ("workers", "devices", "accelerator", "precision")  # arguments of `bnn.fit` that say where it runs
# Validation inputs to choose a likelihood by; with fewer than `MANY` another than the usual one has to be better by
# more than a standard error (docs/decisions.md).
LEAST, MANY = 20, 100


@dataclass
class PlainStage:
    """A plain network, trained or at its start.

    Args:
        name: of the likelihood; None: the usual one.
        outputs: of the network.
        history: None where there is no such stage.
        nlls: validation NLL per input by likelihood, in the units that are trained on, where it was chosen.
    """

    name: str | None
    net: nn.Module
    likelihood: Any
    outputs: int
    history: History | None = None
    nlls: dict[str, float] | None = None

    def losses(self, data: Data) -> Tensor | None:
        """The NLL of every validation input; None where there are none, or the network was not trained."""
        return None if self.history is None else held_out_losses(self.net, self.likelihood, data)

    def settled_losses(self, data: Data) -> Tensor:
        """The NLL of every validation input, with the noise that is the likeliest there, also where it is not settled
        there."""
        noise = copy.deepcopy(self.likelihood)
        settle_(self.net, noise, batches_in_order(thinned(data.validation), BATCH), 0)
        found = held_out_losses(self.net, noise, data)
        assert found is not None
        return found.double()

    def of_folds(self, recipe: Recipe, data: Data, settings: dict[str, Any]) -> Folds:
        """Plain networks like that of the recipe, with the likelihood of this stage, on folds of the training data."""
        train = _for_folds(recipe, self.likelihood, self.outputs, settings)
        return cross_fit(self.likelihood, data, derived(recipe.seed, FOLD), train, settings.get("progress"))


def plain_stage(recipe: Recipe, data: Data, folder: RunFolder | None, settings: dict[str, Any]) -> PlainStage:
    """Builds the network, and trains it plain where the recipe says so; with several likelihoods one network each.

    Raises:
        ValueError: what a later stage would stumble over.
    """
    schedule, place = (recipe.pretrain, PRETRAIN) if recipe.bayesian else (recipe.schedule, TRAIN)
    found = {name: _start(recipe, data, name) for name in candidates(recipe, data)}
    for name, one in found.items():
        if schedule is not None:
            stage = stage_of(folder, place if len(found) == 1 else f"{place}/{name}")
            own = {"likelihood": one.likelihood, **settings}
            one.history = _train(recipe, one.net, data, schedule, stage, own)
            one.likelihood = one.history.likelihood
    if len(found) == 1:
        return next(iter(found.values()))
    losses = {name: one.settled_losses(data) for name, one in found.items()}
    nlls = {str(name): float(loss.mean()) for name, loss in losses.items()}
    return replace(found[best(losses)], nlls=nlls)


def best(losses: dict[str | None, Tensor]) -> str | None:
    """The name of the least mean loss; with fewer than `MANY` inputs the first, unless another is clearly less.

    Args:
        losses: of the same inputs, (N,) each.
    """
    usual, name = next(iter(losses)), min(losses, key=lambda one: float(losses[one].mean()))
    gained = losses[usual] - losses[name]
    clear = len(gained) >= MANY or float(gained.mean()) > float(gained.std()) / len(gained) ** 0.5
    return name if clear else usual


def candidates(recipe: Recipe, data: Data) -> tuple[str | None, ...]:
    """The likelihoods to choose among, by validation NLL of plain networks; the first alone where there is no choice.

    A choice takes a plain training, whose network is not given, and 20 validation inputs.
    """
    if recipe.likelihood != AUTO:
        return (recipe.likelihood,)
    names = CHOICE.get(data.task)
    if names is None:
        return (None,)
    trains = recipe.pretrain is not None or (not recipe.bayesian and recipe.weights is None)
    return names if trains and enough(data.validation, LEAST) else names[:1]


def check_class_weights(recipe: Recipe, data: Data) -> None:
    """Raises unless the class weights of a recipe are for its data."""
    for_data(candidates(recipe, data)[0], data, recipe.class_weights)


def _start(recipe: Recipe, data: Data, name: str | None) -> PlainStage:
    """The plain network or ensemble at its start, with everything tried out that comes after."""
    likelihood = for_data(name, data, recipe.class_weights)
    outputs = data.out_features * likelihood.outputs_per_target
    net = _built(recipe, data, outputs)
    _check_stages(recipe, net, data, likelihood)
    check_teacher(recipe, likelihood)
    return PlainStage(name, net, likelihood, outputs)


def _built(recipe: Recipe, data: Data, outputs: int) -> nn.Module:
    """The plain network or ensemble at its start."""
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, BUILD))
        net = build_net(recipe.net, data.in_shape, outputs)
        net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    if recipe.weights is not None:
        load_(net, recipe.weights)
        forget_temperature_(net)  # training follows, after which it would not fit
    return net


def _train(
    recipe: Recipe, net: nn.Module, data: Data, schedule: Any, folder: RunFolder | None, settings: dict[str, Any]
) -> History:
    """Maximum likelihood: together, or every member of an ensemble alone with its own seed."""
    if not isinstance(net, Ensemble) or recipe.together:
        return fit(net, data, schedule=schedule, seed=recipe.seed, out=folder, **settings)
    histories = []
    for i, member in enumerate(net.members):
        own = settings | {"likelihood": copy.deepcopy(settings["likelihood"])}
        seed, place = derived(recipe.seed, ALONE, i), stage_of(folder, f"{MEMBER}{i}")
        histories.append(fit(member, data, schedule=schedule, seed=seed, out=place, **own))
    together = replace(histories[-1], likelihood=_shared([one.likelihood for one in histories]))
    together.noise = NoiseStage(together.likelihood, data).run_(net, derived(recipe.seed, NOISE))
    return together


def _for_folds(
    recipe: Recipe, likelihood: Any, outputs: int, settings: dict[str, Any]
) -> Callable[[Data, int], Trained]:
    """What trains a plain network like that of the recipe for a fold of its data, quietly, and keeps nothing of it."""
    own = {name: value for name, value in settings.items() if name in MACHINE}
    schedule = recipe.schedule if recipe.pretrain is None else recipe.pretrain
    schedule = Schedule.of(schedule.to_dict() | {"sampling": None, "samples": 1, "split": False})

    def train(data: Data, fold: int) -> Trained:
        net, seed = _built(recipe.but(members=1), data, outputs), derived(recipe.seed, FOLD, fold)
        noise = copy.deepcopy(likelihood)
        more = {"progress": False, "tensorboard": False, **own}
        return net, fit(net, data, likelihood=noise, schedule=schedule, seed=seed, **more).likelihood

    return train


def check_teacher(recipe: Recipe, likelihood: Any) -> None:
    """Raises, before anything is trained, unless outputs under `likelihood` can be taught as the recipe says."""
    if recipe.teacher is not None:
        Teacher(nn.Identity(), **recipe.teacher).check(nn.Identity(), likelihood)


def _shared(noises: list[Any]) -> Any:
    """One likelihood for all members, where they have learned a noise each."""
    first = noises[0]
    return first.pooled(noises) if isinstance(first, likelihoods.Likelihood) else first


def _check_stages(recipe: Recipe, net: nn.Module, data: Data, likelihood: Any) -> None:
    """Finds errors of a later stage before hours go into an earlier one."""
    schedules = [one for one in (recipe.pretrain, recipe.schedule) if one is not None]
    if data.validation is None and any(one.patience is not None for one in schedules):
        raise ValueError('patience needs validation data: data = {..., "validation": 0.1}')
    if data.validation is None and recipe.kl_weights:
        raise ValueError('choosing the KL weight needs validation data: data = {..., "validation": 0.1}')
    if (recipe.bayesian and recipe.pretrain is not None) or recipe.laplace is not None or recipe.prune is not None:
        with own_randomness(torch.device("cpu")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again when it is done
            trial = copy.deepcopy(net)
            if recipe.bayesian:
                bayesianize_(trial, **recipe.method)
            if recipe.bayesian and recipe.global_inducing is not None:
                register_global_inducing_weights_(trial, **recipe.global_inducing)
            if recipe.prune is not None:
                prune_(trial, prune_options(recipe.prune, recipe.schedule.epochs).keep)
            if recipe.laplace is not None:
                LaplaceStage(recipe.laplace, data, likelihood).check(trial)


def stage_of(folder: RunFolder | None, name: str) -> RunFolder | None:
    """The folder of a stage, where there are folders."""
    return None if folder is None else folder.stage(name)
