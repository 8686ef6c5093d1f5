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
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.global_inducing import register_global_inducing_weights_
from bnn.temperature import LEAST, calibrate_
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.build import build_data
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.laplace import LaplaceStage
from bnn.train.plain_stage import plain_stage, stage_of
from bnn.train.prune_options import prune_options
from bnn.train.pruning import prune_and_train_
from bnn.train.recipe import Recipe
from bnn.train.runs.folder import KL, PRUNE, RECIPE, TRAIN, RunFolder, check_free
from bnn.train.runs.run import Run
from bnn.train.settling import Comparison, NoiseStage, held_out_losses
from bnn.train.spread import within_noise

REFRESH, CALIBRATE, LAPLACE, TUNE, NOISE, SPREAD = 12, 13, 14, 15, 16, 18  # what a derived seed is for


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
    plain = plain_stage(recipe, data, folder, settings)
    net, outputs, likelihood = plain.net, plain.outputs, plain.likelihood
    chosen = recipe if plain.nlls is None else recipe.but(likelihood=plain.name)
    before, candidates = None, None
    if recipe.bayesian:
        before = plain.losses(data)
        settings = {"likelihood": likelihood, **settings, **_teaching(recipe, net, likelihood)}
        _convert(recipe, net, data, likelihood)
        history, candidates = _choose(recipe, net, data, folder, settings)
        chosen = chosen if candidates is None else chosen.but(schedule={"kl_weight": _best(candidates)})
    else:
        assert plain.history is not None
        history = plain.history
    if recipe.prune is not None:
        options, place = prune_options(recipe.prune, recipe.schedule.epochs), stage_of(folder, PRUNE)
        own = settings | {"likelihood": history.likelihood, "seed": derived(recipe.seed, TUNE), "out": place}
        history = replace(history, tuned=prune_and_train_(net, data, options, chosen.schedule, own))
        history.likelihood = history.likelihood if history.tuned is None else history.tuned.likelihood
    if recipe.laplace is not None:
        stage = LaplaceStage(recipe.laplace, data, history.likelihood)
        history.laplace = stage.run_(net, derived(recipe.seed, LAPLACE), settings.get("progress"))
        history.noise = NoiseStage(history.likelihood, data).run_(net, derived(recipe.seed, NOISE))
    compared = None if before is None else Comparison.of(before, held_out_losses(net, history.likelihood, data))
    _calibrate(recipe, net, data, history.likelihood)
    more = {"recipe": chosen, "history": history, "candidates": candidates, "folder": folder}
    more |= {"likelihoods": plain.nlls, "plain": compared}
    run = Run.of(net, data, history.likelihood, outputs, **more)
    if folder is not None and _first_process():
        run.write()
    return run


def _claimed(folder: RunFolder, recipe: Recipe) -> RunFolder:
    """The folder, which now holds the recipe; by the first process alone."""
    if _first_process():
        check_free(folder, recipe)
        folder.create()
        folder.write(RECIPE, recipe.to_dict())  # again where a run resumes: more epochs, another description
    return folder


def _first_process() -> bool:
    """Whether this is the only process, or the first of several."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def _teaching(recipe: Recipe, net: nn.Module, noise: Any) -> dict[str, Any]:
    """The plain network, before it is converted, as the teacher of `bnn.fit`; nothing where none is asked for."""
    if recipe.teacher is None:
        return {}
    options = {f"teacher_{name}": value for name, value in recipe.teacher.items()}
    return options | {"teacher": copy.deepcopy(net), "teacher_likelihood": noise}


def _convert(recipe: Recipe, net: nn.Module, data: Data, likelihood: Any) -> None:
    method = recipe.method
    if recipe.spread is not None:
        method = within_noise(method, net, data, likelihood, recipe.spread, derived(recipe.seed, SPREAD))
    with own_randomness(torch.device("cpu")):
        seed_everything(derived(recipe.seed, REFRESH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnergyWarning)  # training follows, and mends it
            bayesianize_(net, **method)
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
