"""A posterior that begins no wider than the noise of the data: caps of lamda and of the sds of U, lowered to it.

The KL of lamda pulls it to its cap, with a weight in the number of weights; where targets have hardly any noise, that
alone would be the largest uncertainty of a prediction, and no training on so many data could make it smaller.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bnn import likelihoods
from bnn._common.seeds import own_randomness, seed_everything
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.data.forms import batches_in_order
from bnn.train.settling import BATCH, gathered_draws

CAPS = ("max_lamda", "init_lamda", "max_sd_u")  # options that are standard deviations
DRAWS, INPUTS = 10, 1_000
PLENTY, SLOWEST = 0.1, 0.3  # noise relative to the sd of targets; the least factor of the rate
TRIALS, CLOSE_ENOUGH, NEARLY_0 = 6, 1.1, 1e-6


def rate_factor(network: nn.Module, data: Data, likelihood: Any) -> float:
    """What the rate of a converted network is multiplied by: min(1, noise / `PLENTY`), and at least `SLOWEST`.

    Steps of an optimiser are noise of their own, in proportion to the rate, which should stay below that of the data.
    The noise is that of the plain network, relative to the sd of its targets: the median over training inputs, of the
    target that has least of it. Of anything but real targets with noise the factor is 1.
    """
    found = likelihoods.about(likelihood)
    if not found.settles:
        return 1.0
    outputs, targets = gathered_draws(network, batches_in_order(data.train, BATCH), found, 0, 0, INPUTS)
    parts = None if targets is None else found.components(outputs)
    if parts is None or targets is None:
        return 1.0
    known = [column[~column.isnan()] for column in targets.flatten(1).T]
    sds = torch.stack([column.std() for column in known])
    noise = parts[1][0].detach().flatten(1) / sds  # (N, D); torch's median of an expanded tensor itself is anything
    return min(1.0, max(SLOWEST, float(noise.median(0).values.min()) / PLENTY))


def within_noise(
    method: dict[str, Any], net: nn.Module, data: Data, likelihood: Any, limit: float, seed: int, **start: Any
) -> dict[str, Any]:
    """The method of a recipe with its caps times the factor that brings its `spread` down to `limit`.

    Args:
        start: further arguments of `bnn.bayesianize_`.
    """

    def converted(factor: float) -> nn.Module:
        trial = copy.deepcopy(net)
        bayesianize_(trial, **scaled(method, factor), **start)
        return trial

    return scaled(method, factor_within(converted, data, likelihood, limit, seed))


def factor_within(
    converted: Callable[[float], nn.Module], data: Data, likelihood: Any, limit: float, seed: int
) -> float:
    """The factor of all caps with which `spread` right after conversion is at most `limit`, or hardly above.

    A cap may count only once it is below the sd that training begins with, so it takes several trials, in each of which
    the factor is multiplied by limit / spread. Where no factor is small enough it is the first of these. Of anything
    but real targets with noise, or where the spread is smaller anyway, it is 1.

    Args:
        converted: the network as converted with caps times a factor.
    """

    def width(factor: float) -> float:
        with own_randomness(torch.device("cpu")), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again when it is done
            seed_everything(seed)
            trial = converted(factor)
        return spread(trial, data, likelihood, seed)

    if not likelihoods.about(likelihood).settles or (found := width(1.0)) <= limit:
        return 1.0
    factor = limit / found
    for _ in range(TRIALS if width(NEARLY_0) <= limit else 0):
        if (found := width(factor)) <= CLOSE_ENOUGH * limit:
            break
        factor *= limit / found
    return factor


def spread(network: nn.Module, data: Data, likelihood: Any, seed: int) -> float:
    """The sd of the mean over draws relative to the noise of real targets: the median over training inputs.

    0 where the outputs of draws have no means and noise.
    """
    found = likelihoods.about(likelihood)
    batches = batches_in_order(data.train, BATCH)
    outputs, targets = gathered_draws(network, batches, found, DRAWS, seed, INPUTS)
    parts = None if targets is None else found.components(outputs)
    if parts is None:
        return 0.0
    means, sds = (part.detach() for part in parts)
    return float((means.std(0) / sds.mean(0)).median())


def scaled(method: dict[str, Any], factor: float) -> dict[str, Any]:
    """The method with the caps that it writes out times `factor`, in every entry.

    >>> scaled({"inference": {"fc": {"inference": "inducing", "max_lamda": 0.04, "inducing_rows": 8}}}, 0.5)
    {'inference': {'fc': {'inference': 'inducing', 'max_lamda': 0.02, 'inducing_rows': 8}}}
    """
    found = {}
    for name, value in method.items():
        if isinstance(value, dict):
            found[name] = scaled(value, factor)
        else:
            capped = name in CAPS and isinstance(value, int | float)
            found[name] = value * factor if capped else value
    return found
