"""Carrying out a recipe, stage by stage, each of which resumes where it stopped."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.errors import DivergenceError
from bnn._common.seeds import derived, own_randomness, seed_everything
from bnn._conversion.energy import EnergyWarning
from bnn._engine.temperature import forget_temperature_
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.ensemble import Ensemble
from bnn.files import load_
from bnn.global_inducing import register_global_inducing_weights_
from bnn.prune import prune_
from bnn.teacher import Teacher
from bnn.temperature import LEAST, calibrate_
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.build import build_data, build_net
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.laplace import LaplaceStage
from bnn.train.prune_options import prune_options
from bnn.train.pruning import prune_and_train_
from bnn.train.recipe import Recipe
from bnn.train.runs.folder import KL, MEMBER, PRETRAIN, PRUNE, RECIPE, TRAIN, RunFolder, check_free
from bnn.train.runs.run import Run
from bnn.train.settling import NoiseStage

BUILD, ALONE, REFRESH, CALIBRATE, LAPLACE, TUNE, NOISE = 10, 11, 12, 13, 14, 15, 16  # what a derived seed is for


def run_recipe(
    recipe: Recipe, out: str | os.PathLike[str] | None = None, *, data: Data | None = None, **settings: Any
) -> Run:
    """Carries out a recipe; with `out`, started again, it resumes where it stopped.

    Args:
        out: the run's folder: one folder of `bnn.fit` per stage, then `net.safetensors` and `run.json`;
            `bnn.open_run` reads it back.
        data: the data set, where it is at hand already; None builds it as the recipe says.
        settings: further arguments of `bnn.fit` that do not change the result: progress, save_every, devices, ....
    """
    data = build_data(recipe.data) if data is None else data
    folder = None if out is None else _claimed(RunFolder(out), recipe)
    likelihood = likelihoods.for_task(recipe.likelihood, data.task, _real_targets(data))
    outputs = data.out_features * likelihood.outputs_per_target
    net = _built(recipe, data, outputs)
    _check_stages(recipe, net, data, likelihood)
    check_teacher(recipe, likelihood)
    settings, noise = {"likelihood": likelihood, **settings}, None
    if recipe.pretrain is not None:
        noise = _train_plain(recipe, net, data, recipe.pretrain, _stage(folder, PRETRAIN), settings).likelihood
    if recipe.bayesian:
        settings |= _teaching(recipe, net, noise)
        _convert(recipe, net, data)
        history, candidates = _choose(recipe, net, data, folder, settings)
        chosen = recipe if candidates is None else recipe.but(schedule={"kl_weight": _best(candidates)})
    else:
        history = _train_plain(recipe, net, data, recipe.schedule, _stage(folder, TRAIN), settings)
        chosen, candidates = recipe, None
    if recipe.prune is not None:
        options, place = prune_options(recipe.prune, recipe.schedule.epochs), _stage(folder, PRUNE)
        own = settings | {"likelihood": history.likelihood, "seed": derived(recipe.seed, TUNE), "out": place}
        history = replace(history, tuned=prune_and_train_(net, data, options, chosen.schedule, own))
        history.likelihood = history.likelihood if history.tuned is None else history.tuned.likelihood
    if recipe.laplace is not None:
        stage = LaplaceStage(recipe.laplace, data, history.likelihood)
        history.laplace = stage.run_(net, derived(recipe.seed, LAPLACE), settings.get("progress"))
    if recipe.laplace is not None or _alone(recipe):  # what the last training settled was of another prediction
        history.noise = NoiseStage(history.likelihood, data).run_(net, derived(recipe.seed, NOISE))
    _calibrate(recipe, net, data, history.likelihood)
    more = {"recipe": chosen, "history": history, "candidates": candidates, "folder": folder}
    run = Run.of(net, data, history.likelihood, outputs, **more)
    if folder is not None and _first_process():
        run.write()
    return run


def _real_targets(data: Data) -> int:
    return data.out_features if data.task == "regression" else 1


def _alone(recipe: Recipe) -> bool:
    """Whether the networks of an ensemble are trained one by one, and used as they are."""
    return recipe.members > 1 and not recipe.bayesian and not recipe.together


def _claimed(folder: RunFolder, recipe: Recipe) -> RunFolder:
    """The folder, which now holds the recipe; by the first process alone."""
    if _first_process():
        check_free(folder, recipe)
        folder.create()
        folder.write(RECIPE, recipe.to_dict())  # again where a run resumes: more epochs, another description
    return folder


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
        forget_temperature_(net)  # training follows, after which it would not fit
    return net


def _train_plain(
    recipe: Recipe, net: nn.Module, data: Data, schedule: Any, folder: RunFolder | None, settings: dict[str, Any]
) -> History:
    """Maximum likelihood: together, or every member of an ensemble alone with its own seed."""
    if not isinstance(net, Ensemble) or recipe.together:
        return fit(net, data, schedule=schedule, seed=recipe.seed, out=folder, **settings)
    histories = []
    for i, member in enumerate(net.members):
        own = settings | {"likelihood": copy.deepcopy(settings["likelihood"])}
        seed, place = derived(recipe.seed, ALONE, i), _stage(folder, f"{MEMBER}{i}")
        histories.append(fit(member, data, schedule=schedule, seed=seed, out=place, **own))
    return replace(histories[-1], likelihood=_shared([one.likelihood for one in histories]))


def check_teacher(recipe: Recipe, likelihood: Any) -> None:
    """Raises, before anything is trained, unless outputs under `likelihood` can be taught as the recipe says."""
    if recipe.teacher is not None:
        Teacher(nn.Identity(), **recipe.teacher).check(nn.Identity(), likelihood)


def _teaching(recipe: Recipe, net: nn.Module, noise: Any) -> dict[str, Any]:
    """The plain network, before it is converted, as the teacher of `bnn.fit`; nothing where none is asked for."""
    if recipe.teacher is None:
        return {}
    options = {f"teacher_{name}": value for name, value in recipe.teacher.items()}
    return options | {"teacher": copy.deepcopy(net), "teacher_likelihood": noise}


def _shared(noises: list[Any]) -> Any:
    """One likelihood for all members, where they have learned a noise each."""
    first = noises[0]
    return first.pooled(noises) if isinstance(first, likelihoods.Likelihood) else first


def _convert(recipe: Recipe, net: nn.Module, data: Data) -> None:
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, REFRESH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnergyWarning)  # training follows, and mends it
            bayesianize_(net, **recipe.method)
        if recipe.global_inducing is not None:
            register_global_inducing_weights_(net, **recipe.global_inducing)
        if recipe.pretrain is not None or recipe.weights is not None:
            refresh_batchnorm_(net, data)


def _calibrate(recipe: Recipe, net: nn.Module, data: Data, likelihood: Any) -> None:
    """Fits the temperature where the recipe asks for it and the data allow it; a run that resumes finds the same."""
    if recipe.calibrate and why_not_calibrated(data, likelihood) is None:
        generator = torch.Generator().manual_seed(derived(recipe.seed, CALIBRATE))
        calibrate_(net, data, likelihood=likelihood, generator=generator, progress=False)


def why_not_calibrated(data: Data, likelihood: Any) -> str | None:
    """Why no temperature can be fitted, in words; None where it can."""
    if not likelihoods.about(likelihood).logits:
        return "the outputs are no logits"
    if data.validation is None:
        return "there are no validation data"
    if len(data.validation) < LEAST:
        return f"{len(data.validation)} validation inputs are too few, it takes {LEAST}"
    return None


def _choose(
    recipe: Recipe, net: nn.Module, data: Data, folder: RunFolder | None, settings: dict[str, Any]
) -> tuple[History, dict[str, float] | None]:
    """The main training; with several KL weights each from the same start, and validation NLL chooses."""
    if not recipe.kl_weights:
        history = fit(net, data, schedule=recipe.schedule, seed=recipe.seed, out=_stage(folder, TRAIN), **settings)
        return history, None
    found: dict[str, tuple[float, History, dict[str, Tensor]]] = {}
    for weight in recipe.kl_weights:
        trained, own = copy.deepcopy(net), copy.deepcopy(settings)
        schedule = recipe.but(schedule={"kl_weight": weight}).schedule
        place = _stage(folder, f"{KL}{weight!r}")
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


def _stage(folder: RunFolder | None, name: str) -> RunFolder | None:
    return None if folder is None else folder.stage(name)
