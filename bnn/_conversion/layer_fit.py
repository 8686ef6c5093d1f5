"""Weights of limited rank for one layer, from what it saw and gave: how far to trust a few inputs.

With few rows per entry the closest fit to them is not the closest one to others: a Linear of 784 inputs after 512 of
them, say. The ridge, which pulls towards the weights at hand, is then chosen by what half of the inputs say about the
other half.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bnn._conversion.layer_rows import Sums
from bnn.functional.kernels import from_matrix, to_matrix
from bnn.functional.low_rank import RIDGE, LowRank, centred, energy_kept, low_rank
from bnn.functional.projection import truncated_svd
from bnn.nn.base import Weights

ENOUGH = 50  # rows per entry: from there on the smallest ridge is as good as any
RIDGES = (RIDGE, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # with the last one the fit is plain truncation, nearly
START = 3  # the place in them to begin with
LONG = 1024  # entries of a row, whose fits take seconds


class Wanted(NamedTuple):
    """A layer to fit."""

    name: str
    layer: nn.Module
    weights: Weights
    rank: int
    kernel: str  # which matrix has that rank


class Fit(NamedTuple):
    """Weights of limited rank."""

    found: LowRank
    shift: Tensor | None  # a bias (c_out,), where BatchNorm can take one for a layer without


class Trust(NamedTuple):
    """How closely a fit follows its inputs."""

    ridge: float
    shift: bool  # whether the mean of the outputs is fitted, too


def fit(one: Wanted, halves: tuple[Sums, Sums], norm: bool) -> Fit:
    """The weights of limited rank that lose least of a layer's outputs.

    Args:
        halves: of the inputs; the second may be empty.
        norm: whether BatchNorm can take a bias for this layer.
    """
    both = joined(one, halves)
    return _fit(one, both, _trust(one, halves, both, norm and one.weights.bias is None))


def joined(one: Wanted, halves: tuple[Sums, Sums]) -> Sums:
    """The sums over all inputs, which must be finite."""
    both = halves[0].plus(halves[1])
    if not bool(torch.isfinite(both.S).all() and torch.isfinite(both.K).all()):
        raise ValueError(
            f"layer {one.name!r} saw or gave NaN or inf on the inputs of activations=: look for them in these inputs, "
            "and in what the network makes of them"
        )
    return both


def truncated(one: Wanted) -> LowRank:
    """Plain truncation, and how much of the weights' energy it keeps."""
    W = to_matrix(*one.weights, one.kernel)
    U, singular, V = truncated_svd(W, min(one.rank, *W.shape))
    energy = float(W.double().square().sum())
    return LowRank((U * singular) @ V, float(singular.square().sum()) / energy if energy > 0 else 1.0)


def _trust(one: Wanted, halves: tuple[Sums, Sums], both: Sums, shift: bool) -> Trust:
    """The ridge with which either half predicts the other best; of long rows one half, to save time."""
    entries, nearest = both.S.shape[-1], Trust(RIDGES[-1], False)
    if both.rows >= ENOUGH * entries:
        return Trust(RIDGE, shift)
    if not all(half.rows for half in halves):
        return nearest
    pairs = [halves, halves[::-1]][: 2 if entries <= LONG else 1]

    @functools.cache
    def lost(trust: Trust) -> float:
        return sum(_lost(one, _fit(one, a, trust, rounds=1), b) for a, b in pairs)

    choices = [Trust(ridge, shift) for ridge in RIDGES]
    best = _lowest([functools.partial(lost, choice) for choice in choices], START)
    return min(choices[best], nearest, key=lost) if shift else choices[best]


def _lowest(values: list[Callable[[], float]], start: int) -> int:
    """The index of the least of values that fall and then rise, computing few of them."""
    here = start
    for step in (-1, 1):
        while 0 <= here + step < len(values) and values[here + step]() < values[here]():
            here += step
    return here


def _fit(one: Wanted, sums: Sums, trust: Trust, **options: int) -> Fit:
    weight, bias = one.weights.weight.double(), None if one.weights.bias is None else one.weights.bias.double()
    moments = sums.moments()
    if not trust.shift:
        return Fit(low_rank(weight, bias, moments, one.rank, one.kernel, ridge=trust.ridge, **options), None)
    x, y = sums.means()
    around = centred(moments, x, y)
    found = low_rank(weight, None, around, one.rank, one.kernel, ridge=trust.ridge, **options)
    kept = 1 - (1 - found.kept) * around.energy / moments.energy if moments.energy > 0 else 1.0
    return Fit(found._replace(kept=kept), (y - _mean_output(one, found, x)).flatten())


def _lost(one: Wanted, fitted: Fit, sums: Sums) -> float:
    """E |y - W x - shift|^2 over other rows."""
    moments = sums.moments()
    weights = from_matrix(fitted.found.W, one.weights.weight.shape, one.weights.bias is not None, one.kernel)
    lost = (1 - energy_kept(*weights, moments)) * moments.energy
    if fitted.shift is None:
        return lost
    x, y = sums.means()
    ahead = (y - _mean_output(one, fitted.found, x)).flatten()
    return lost + float((fitted.shift * (fitted.shift - 2 * ahead)).sum())


def _mean_output(one: Wanted, found: LowRank, x: Tensor) -> Tensor:
    """W E[x] (groups, c_out / groups) of a layer without a bias."""
    W = from_matrix(found.W, one.weights.weight.shape, False, one.kernel)[0].flatten(1).unflatten(0, (len(x), -1))
    return (W @ x[..., None]).squeeze(-1)
