"""A run tried out in memory: a network that cannot be built, converted or fed is found before anything is written."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from bnn import likelihoods
from bnn.bayesianize import bayesianize_
from bnn.cli.mistakes import Mistake
from bnn.data.dataset import Data
from bnn.ensemble import Ensemble
from bnn.evaluation.network import size_of
from bnn.evaluation.pieces import Size
from bnn.files import load_
from bnn.global_inducing import register_global_inducing_weights_
from bnn.train.batches import source_of
from bnn.train.build import build_net
from bnn.train.checks import checked
from bnn.train.recipe import Recipe
from bnn.train.seeds import own_randomness


def rehearse(recipe: Recipe, data: Data) -> Size:
    """Builds the network of a recipe, converts it and shows it a few inputs; returns how large it is.

    Raises:
        Mistake, ValueError, TypeError: what training would stumble over.
    """
    schedules = [one for one in (recipe.pretrain, recipe.schedule) if one is not None]
    if data.validation is None and (recipe.kl_weights or any(one.patience is not None for one in schedules)):
        raise Mistake("--patience and kl_weights choose by validation data: set some aside with --validation 0.1")
    likelihood = likelihoods.for_task(recipe.likelihood, data.task)
    outputs = data.out_features * likelihood.outputs_per_target
    with own_randomness(torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again when it is done
        net = _converted(recipe, data, outputs)
        checked(source_of(data, recipe.schedule.batch_size), net, likelihood, data, given=True)
    return size_of(net)


def _converted(recipe: Recipe, data: Data, outputs: int) -> nn.Module:
    net = build_net(recipe.net, data.in_shape, outputs)
    net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    if recipe.weights is not None:
        load_(net, recipe.weights)
    if recipe.bayesian:
        bayesianize_(net, **_from_anywhere(recipe.method))
    if recipe.global_inducing is not None:
        register_global_inducing_weights_(net, **recipe.global_inducing)
    return net


def _from_anywhere(method: dict[str, Any]) -> dict[str, Any]:
    """The method without projecting weights, which takes minutes for large layers and changes no size."""
    named = method["inference"]
    families = [named] if isinstance(named, str) else [_family(one) for one in named.values()]
    inducing = any(str(family).lower().startswith("inducing") for family in families)
    return method | ({"init": "paper"} if inducing else {})


def _family(entry: Any) -> Any:
    return entry.get("inference") if isinstance(entry, dict) else entry
