"""A posterior that begins no wider than the noise of the data: caps of lamda and of the sds of U, lowered to it.

The KL of lamda pulls it to its cap, with a weight in the number of weights; where targets have hardly any noise, that
alone would be the largest uncertainty of a prediction, and no training on so many data could make it smaller.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from bnn import likelihoods
from bnn._common.seeds import own_randomness, seed_everything
from bnn._conversion.energy import EnergyWarning
from bnn.bayesianize import bayesianize_
from bnn.data.dataset import Data
from bnn.data.forms import batches_in_order
from bnn.train.settling import BATCH, gathered_draws

CAPS = ("max_lamda", "init_lamda", "max_sd_u")  # options that are standard deviations
DRAWS, INPUTS = 10, 1_000


def within_noise(
    method: dict[str, Any], net: nn.Module, data: Data, likelihood: Any, limit: float, seed: int
) -> dict[str, Any]:
    """The method of a recipe with its caps times min(1, limit s / e): e is what lamda and U at their caps would add.

    s is the noise of the plain network, e the sd of the mean over draws, and s / e the median over training inputs. Of
    anything but real targets with noise the method stays as it is.
    """
    found = likelihoods.about(likelihood)
    if not found.settles:
        return method
    trial = copy.deepcopy(net)
    with own_randomness(torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore", EnergyWarning)
        seed_everything(seed)
        bayesianize_(trial, **method)
    batches = batches_in_order(data.train, BATCH)
    outputs, targets = gathered_draws(trial, batches, found, DRAWS, seed, INPUTS)
    parts = None if targets is None else found.components(outputs)
    if parts is None:
        return method
    means, sds = (part.detach() for part in parts)
    ratio = float((means.std(0) / sds.mean(0)).median())
    return method if ratio <= limit else scaled(method, limit / ratio)


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
