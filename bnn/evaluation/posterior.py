"""Where a posterior ended: standard deviations and lamda, relative to their caps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bnn.evaluation.pieces import LayerPosterior, Posterior, Scale
from bnn.nn.base import BayesianLayer
from bnn.nn.families.inducing import InducingBase

AT_CAP = 0.99  # from this share of its cap on a value counts as being at it


def posterior_of(network: nn.Module) -> Posterior | None:
    """The state of all Bayesian layers of `network`; None for a plain one."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, BayesianLayer)]
    if not layers:
        return None
    with torch.no_grad():
        found = tuple(LayerPosterior(name, layer.family, sd_of(layer), lamda_of(layer)) for name, layer in layers)
    sds, lamdas = ([one.sd for one in found], [one.lamda for one in found])
    return Posterior(pooled(sds), pooled(lamdas), found)


def lamda_of(layer: BayesianLayer) -> Scale | None:
    """lamda of an inducing layer; None where W is a point given U, or there is no U."""
    lamda = layer.lamda() if isinstance(layer, InducingBase) else None
    return None if lamda is None else scale(lamda, layer.options.max_lamda)


def sd_of(layer: BayesianLayer) -> Scale | None:
    """The standard deviations of the weights, or of U; None where they are a point, or another module's."""
    sds, cap = layer.sds_and_cap()
    return None if sds is None else scale(sds, cap)


def scale(values: Tensor, cap: float | None = None) -> Scale:
    """Summary of positive values of any shape."""
    values = values.detach().double().flatten().cpu()
    count, mean, largest = len(values), float(values.mean()), float(values.max())
    if not cap:
        return Scale(count, mean, largest)
    ratios = values / cap
    return Scale(count, mean, largest, cap, float(ratios.mean()), float((ratios >= AT_CAP).double().mean()), count)


def pooled(scales: Sequence[Scale | None]) -> Scale | None:
    """One summary of the values of all layers, each value counting the same."""
    present = [one for one in scales if one is not None]
    if not present:
        return None
    count, capped = sum(one.count for one in present), sum(one.capped for one in present)
    mean = sum(one.count * one.mean for one in present) / count
    largest = max(one.largest for one in present)
    if not capped:
        return Scale(count, mean, largest)
    caps = {one.cap for one in present}
    ratio, at_cap = (
        sum(one.capped * (value or 0.0) for one, value in zip(present, values, strict=True)) / capped
        for values in ([one.ratio for one in present], [one.at_cap for one in present])
    )
    return Scale(count, mean, largest, caps.pop() if len(caps) == 1 else None, ratio, at_cap, capped)
