"""Noise of real targets: the scale that makes a mixture over draws likeliest, and tails that are heavier than Gaussian.

Noise of standard deviation sd with df degrees of freedom is a mixture of J Gaussians,

    e ~ sum_j p_j N(0, (sd c_j)^2),    sum_j p_j c_j^2 = 1,

Student's t with its mixing distribution in bins. Its tails thin out as a Gaussian's do beyond the widest of them only,
so that the variance is finite and everything that is said of mixtures of Gaussians holds to the last digit. df = inf is
one Gaussian, c = 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

GRID, STEPS = 48, 60  # scales that are tried before the search, as a mixture may have several maxima; steps of it
NEAR = 8.0  # the factor by which a scale that is known for other tails may be off
TOLERANCE = 1e-10  # of log c
SMALLEST = 1e-6  # of what the residuals could have been: no noise at all would be an infinite likelihood
# Of the bins, the widest noise last: even in the middle, small where it reaches far (docs/decisions.md has how near).
PROBABILITIES = (0.35, 0.3, 0.2, 0.1, 0.04, 0.01)

LEVELS = (0.5, 0.8, 0.9)  # of intervals that are to hold what they say

Bins = tuple[tuple[float, ...], tuple[float, ...]]


@lru_cache(maxsize=64)
def tails(df: float) -> Bins:
    """Probabilities p and relative sds c, each (J,), of the Gaussians that noise with `df` degrees of freedom is.

    Student's t is N(0, 1 / g) with g ~ Gamma(df / 2), up to its scale. Bin j has probability p_j, the largest g first,
    and its variance is the mean of 1 / g there, E[1 / g; g in (a, b)] ~ P(df / 2 - 1, b) - P(df / 2 - 1, a) with the
    regularised incomplete gamma function P.

    >>> tails(math.inf)
    ((1.0,), (1.0,))
    """
    if math.isinf(df):
        return (1.0,), (1.0,)
    if not df > 2:
        raise ValueError(f"df must be above 2, where the variance is finite; got {df}")
    shape = torch.tensor(0.5 * df, dtype=torch.double)
    probabilities = torch.tensor(PROBABILITIES, dtype=torch.double)
    beyond = probabilities.flip(0).cumsum(0).flip(0)[1:]  # of a g below the edges between bins
    below = torch.special.gammainc(shape - 1, _gamma_quantile(shape, beyond))
    squares = -torch.diff(below, prepend=below.new_ones(1), append=below.new_zeros(1)) / probabilities
    squares /= (probabilities * squares).sum()
    return tuple(probabilities.tolist()), tuple(squares.sqrt().tolist())


def _gamma_quantile(shape: Tensor, probability: Tensor) -> Tensor:
    """g with P(shape, g) = probability, by bisection of log g."""
    low, high = torch.full_like(probability, -700.0), (shape + 20 * shape.sqrt() + 20).log().expand_as(probability)
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = torch.special.gammainc(shape, middle.exp()) >= probability
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high.exp()


def central_quantile(level: float, df: float = math.inf) -> float:
    """q with P(|e| < q) = level, for noise e of standard deviation 1 with `df` degrees of freedom.

    >>> round(central_quantile(0.95), 4)
    1.96
    """
    p, c = (torch.tensor(part, dtype=torch.double) for part in tails(df))
    low, high = 0.0, 10.0 * float(c.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        held = float((p * torch.erf(middle / (c * math.sqrt(2)))).sum())
        low, high = (low, middle) if held >= level else (middle, high)
    return high


def holding_scale(errors: Tensor, df: float = math.inf) -> Tensor:
    """c with which central intervals of noise of standard deviation c hold as many errors as they say.

    The geometric mean over `LEVELS` of the quantile of |e| over that of noise of sd 1. Unlike the likeliest scale it
    does not follow a few errors that are far beyond what the noise can reach.

    Args:
        errors: (n,), all finite; n of at least 1.

    >>> holding_scale(3.0 * torch.distributions.Normal(0.0, 1.0).icdf(torch.arange(1, 1000) / 1000.0))
    tensor(2.99..., dtype=torch.float64)
    """
    levels = errors.new_tensor(LEVELS, dtype=torch.double)
    found = errors.double().abs().quantile(levels)
    expected = found.new_tensor([central_quantile(level, df) for level in LEVELS])
    return (found / expected).log().mean().exp()


def likeliest_scale(
    residuals: Tensor, size: Tensor, sds: Tensor | None = None, df: float = math.inf, near: Tensor | None = None
) -> Tensor:
    """c = argmax sum_n log 1/K sum_k sum_j p_j N(r_kn; 0, (c s_kn c_j)^2), a scalar in float64.

    With one draw of Gaussian noise it is the rms of r / s. A maximum is a mean of r^2 / (s c_j)^2 with weights over
    draws and bins, so it lies between the means of the smallest and of the largest of them.

    Args:
        residuals: r (K, n) of K draws, all finite; n of at least 1.
        size: a scalar, how large residuals would be without a network; c is at least a millionth of it.
        sds: s (K, n); None: 1 everywhere.
        df: degrees of freedom of the noise, whose bins `tails` gives.
        near: the likeliest scale under other tails, around which to search; None: everywhere.
    """
    probabilities, scales = (residuals.new_tensor(part, dtype=torch.double).reshape(-1, 1, 1) for part in tails(df))
    logs = scales.log() + (torch.zeros_like(residuals).double() if sds is None else sds.double().log())
    squares = (residuals.double() * (-logs).exp()).square().flatten(0, 1)  # (J K, n)
    offsets = (probabilities.log() - logs).flatten(0, 1)
    least = (SMALLEST * size.double()).clamp(min=torch.finfo(torch.float32).tiny ** 0.5)
    low = squares.amin(0).mean().sqrt().clamp(min=least)
    high = squares.amax(0).mean().sqrt().clamp(min=least)
    if len(squares) == 1 or not bool(high > low):
        return high
    left, right = float(low.log()), float(high.log())
    if near is None:
        grid = torch.linspace(left, right, GRID, dtype=torch.double)
        scores = [(offsets - 0.5 * squares * math.exp(-2 * t)).logsumexp(0).sum() - t * squares.shape[1] for t in grid]
        best = int(torch.stack(scores).argmax())
        left, right = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)])
    else:
        middle, reach = float(near.double().log()), math.log(NEAR)
        left, right = max(left, min(middle - reach, right)), min(right, max(middle + reach, left))
    return low.new_tensor(math.exp(_maximum(squares, offsets, left, right)))


def _maximum(squares: Tensor, offsets: Tensor, left: float, right: float) -> float:
    """t in [left, right] with the largest sum_n log sum_i exp(offset_in - q_in / 2) - t, q = exp(-2 t) squares.

    By Newton's method, and bisection where that leads astray: the slope is sum_n E[q] - 1 under the weights of the sum
    over i, and its own slope sum_n Var[q] - 2 E[q].
    """
    t = 0.5 * (left + right)
    for _ in range(STEPS):
        q = squares * math.exp(-2 * t)
        weights = (offsets - 0.5 * q).softmax(0)
        mean = (weights * q).sum(0)
        slope = float((mean - 1).sum())
        bend = float(((weights * q * q).sum(0) - mean.square() - 2 * mean).sum())
        newton = t - slope / bend if bend < 0 else math.nan
        if abs(newton - t) < TOLERANCE:
            break
        left, right = (t, right) if slope > 0 else (left, t)
        t = newton if left < newton < right else 0.5 * (left + right)
    return t
