"""Carrying out a recipe, stage by stage, each of which resumes where it stopped."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bnn import likelihoods
from bnn._common.seeds import derived
from bnn.data.dataset import Data
from bnn.temperature import LEAST, calibrate_
from bnn.train.build import build_data
from bnn.train.converted_stage import converted_stage, teaching
from bnn.train.cross_fit import cross_fits
from bnn.train.laplace import LaplaceStage
from bnn.train.plain_stage import check_class_weights, plain_stage, stage_of
from bnn.train.prune_options import prune_options
from bnn.train.pruning import prune_and_train_
from bnn.train.recipe import Recipe
from bnn.train.runs.folder import PRUNE, RECIPE, RunFolder, check_free
from bnn.train.runs.guaranteeing import check_guarantee
from bnn.train.runs.run import Run
from bnn.train.settling import Comparison, NoiseStage, held_out_losses

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
    check_class_weights(recipe, data)  # what is wrong with it leaves no folder behind
    check_guarantee(data, recipe.guarantee_by_class)
    folder = None if out is None else _claimed(RunFolder(out), recipe)
    everything, data = data, replace(data, guarantee=None)  # no stage sees what is set aside
    plain = plain_stage(recipe, data, folder, settings)
    net, outputs, likelihood = plain.net, plain.outputs, plain.likelihood
    chosen = recipe if plain.nlls is None else recipe.but(likelihood=plain.name)
    before, converted = None, None
    if recipe.bayesian:
        before = plain.losses(data)
        settings = settings | teaching(recipe, net, likelihood)
        converted = converted_stage(recipe, net, likelihood, data, folder, before, settings)
        net, history = converted.net, converted.history
        chosen = chosen.but(schedule=converted.kl_weight)
    else:
        assert plain.history is not None
        history = plain.history
    if recipe.prune is not None:
        options, place = prune_options(recipe.prune, recipe.schedule.epochs), stage_of(folder, PRUNE)
        own = settings | {"likelihood": history.likelihood, "seed": derived(recipe.seed, TUNE), "out": place}
        history = replace(history, tuned=prune_and_train_(net, data, options, chosen.schedule, own))
        history.likelihood = history.likelihood if history.tuned is None else history.tuned.likelihood
    if recipe.laplace is not None:
        calibrated = recipe.calibrate and why_not_calibrated(data, history.likelihood) is None
        stage = LaplaceStage(recipe.laplace, data, history.likelihood, calibrated=calibrated)
        history.laplace = stage.run_(net, derived(recipe.seed, LAPLACE), settings.get("progress"))
        history.noise = NoiseStage(history.likelihood, data).run_(net, derived(recipe.seed, NOISE))
    compared = None if before is None else Comparison.of(before, held_out_losses(net, history.likelihood, data))
    if recipe.weights is None and cross_fits(history.likelihood, data):
        history.noise = plain.of_folds(recipe, data, settings).settle_(history.likelihood)
    _calibrate(recipe, net, data, history.likelihood)
    more: dict[str, Any] = {"recipe": chosen, "history": history, "folder": folder}
    more |= {"likelihoods": plain.nlls, "plain": compared}
    if converted is not None:
        more |= {"candidates": converted.candidates, "retry": converted.retry}
    run = Run.of(net, everything, history.likelihood, outputs, **more)
    history.guarantee = None if run.guarantee is None else run.guarantee.guarantee
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
