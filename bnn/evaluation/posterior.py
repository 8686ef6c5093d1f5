"""Where a posterior ended: standard deviations and lamda, relative to their caps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor, nn

from bnn.evaluation.pieces import LayerPosterior, Posterior, Scale
from bnn.functional.linalg import positive
from bnn.nn import q_inducing
from bnn.nn.base import BayesianLayer
from bnn.nn.families.fcg import FCG
from bnn.nn.families.ffg import FFG
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
    if isinstance(layer, InducingBase):
        sds = sds_of_u(layer.q, layer)
        return None if sds is None else scale(sds, layer.options.max_sd_u)
    if isinstance(layer, FFG):
        return scale(torch.cat([part.flatten() for part in layer.sds() if part is not None]), layer.options.max_sd)
    if isinstance(layer, FCG):
        return scale(row_norms(layer.scale_tril()))
    own = [positive(getattr(layer, name)).flatten() for name in layer.scales if name in layer._parameters]
    return scale(torch.cat(own)) if own else None  # a family from elsewhere: what it says its scales are


@singledispatch
def sds_of_u(q: q_inducing.QInducing, layer: InducingBase) -> Tensor | None:
    """Standard deviations of the entries of U under q(U); None for a point, or where another module draws U."""
    return None


@sds_of_u.register
def _(q: q_inducing.Diagonal, layer: InducingBase) -> Tensor | None:
    return q.sd(layer)


@sds_of_u.register
def _(q: q_inducing.Matrix, layer: InducingBase) -> Tensor | None:
    row, col = q.trils(layer)
    return torch.outer(row_norms(row), row_norms(col))


@sds_of_u.register
def _(q: q_inducing.Full, layer: InducingBase) -> Tensor | None:
    return row_norms(q.tril(layer))


@sds_of_u.register
def _(q: q_inducing.Ensemble, layer: InducingBase) -> Tensor | None:
    members = layer.get_parameter("inducing_mean")  # (K, M_out, M_in)
    return members.double().std(0, correction=0)


def row_norms(tril: Tensor) -> Tensor:
    """sqrt(diag(T T^T)) (n,)."""
    return tril.double().square().sum(1).sqrt()


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
