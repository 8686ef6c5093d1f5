"""How good are Gaussian predictions of real numbers: error, proper scores, and intervals.

Data are along dimension 0. What else there is are outputs: the NLL sums over them, as a density of them together does,
and everything else averages. Where there are several, targets that are NaN are missing: sums and averages are over the
known ones of a datum, and then over the data that have any. Of a prediction of `bnn.predict` take
`sd = prediction.total.sqrt()`.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bnn._common.checks import share
from bnn.metrics.checks import Floats, numbers, same_shape, to_numpy
from bnn.metrics.registry import metric
from bnn.metrics.resampling import Statistic, by_counts, mean_of

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def per_row(values: Floats, total: bool = False) -> Floats:
    """The mean, or the sum, over the outputs that are not NaN: (N, ...) -> (N,), NaN where all of them are."""
    flat = values.reshape(len(values), -1)
    known = ~np.isnan(flat)
    if known.all():
        return np.asarray(flat.sum(axis=1) if total else flat.mean(axis=1))
    sums, count = np.where(known, flat, 0.0).sum(axis=1), known.sum(axis=1)
    return np.where(count > 0, sums / (1 if total else np.maximum(count, 1)), np.nan)


def known_rows(targets: Floats) -> NDArray[np.bool_]:
    """Which data have at least one target that is not NaN (N,)."""
    return np.asarray(~np.isnan(targets.reshape(len(targets), -1)).all(axis=1))


def targets_of(values: ArrayLike) -> Floats:
    """Targets (N, ...), finite; of several a datum may miss some, which are NaN, and some data may miss all."""
    array = to_numpy(values)
    several = array.ndim > 1 and array[:1].size > 1
    if not several or array.dtype.kind != "f" or not np.isnan(array).any():
        return with_rows("targets", array)
    numbers("targets", np.where(np.isnan(array), 0.0, array))
    if np.isnan(array).all():
        raise ValueError("targets must not be missing in all data; all are NaN")
    return array.astype(np.float64)


def with_rows(name: str, values: ArrayLike) -> Floats:
    """Finite numbers (N, ...)."""
    array = numbers(name, values)
    if array.ndim == 0:
        raise ValueError(f"{name} must have shape (N, ...); got a single number")
    return array


def scales(name: str, values: ArrayLike) -> Floats:
    """Finite numbers that are positive."""
    array = numbers(name, values)
    if (array <= 0).any():
        raise ValueError(f"{name} must be positive; {(array <= 0).sum()} are not, the least is {array.min():g}")
    return array


def _checked(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Mean, sd and targets, all (N, ...); a single sd is that of all."""
    m, s, y = with_rows("mean", mean), scales("sd", sd), targets_of(targets)
    s = np.broadcast_to(s, m.shape) if s.ndim == 0 else s
    same_shape(mean=m, sd=s, targets=y)
    return m, s, y


def log_density(z: Floats, sd: Floats) -> Floats:
    """log N(z sd; 0, sd^2), elementwise."""
    return -0.5 * z * z - np.log(sd) - HALF_LOG_2PI


def normal_cdf(z: Floats) -> Floats:
    """Phi(z), elementwise."""
    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy())


def expected_distance(z: Floats, sd: Floats) -> Floats:
    """E|sd (z + e)| for e ~ N(0, 1): sd [z (2 Phi(z) - 1) + 2 phi(z)]."""
    return sd * (z * (2 * normal_cdf(z) - 1) + 2 * np.exp(-0.5 * z * z - HALF_LOG_2PI))


def half_width(level: float) -> float:
    """Of the central interval of N(0, 1) with probability `level`."""
    return NormalDist().inv_cdf((1 + share("level", level)) / 2)


def square_rows(mean: ArrayLike, targets: ArrayLike) -> Floats:
    """Mean squared error of every datum (N,)."""
    m, y = with_rows("mean", mean), targets_of(targets)
    same_shape(mean=m, targets=y)
    return per_row(np.square(y - m))


def nll_rows(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> Floats:
    """-log N(y; m, sd^2) of every datum (N,), summed over outputs."""
    m, s, y = _checked(mean, sd, targets)
    return per_row(-log_density((y - m) / s, s), total=True)


def crps_rows(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> Floats:
    """CRPS of every datum (N,)."""
    m, s, y = _checked(mean, sd, targets)
    return per_row(expected_distance((y - m) / s, s) - s / math.sqrt(math.pi))


def coverage_rows(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike, level: float = 0.95) -> Floats:
    """Share of every datum's outputs that are in their interval (N,)."""
    m, s, y = _checked(mean, sd, targets)
    low, high = interval(m, s, level)
    return inside(low, high, y)


def inside(low: Floats, high: Floats, targets: Floats) -> Floats:
    """Share of every datum's known targets that are between low and high (N,)."""
    return per_row(np.where(np.isnan(targets), np.nan, (low <= targets) & (targets <= high)))


def width_rows(sd: ArrayLike, level: float = 0.95) -> Floats:
    """Mean width of every datum's intervals (N,)."""
    return per_row(2 * half_width(level) * scales("sd", with_rows("sd", sd)))


def _root_of_mean(mean: ArrayLike, targets: ArrayLike) -> Statistic:
    statistic = mean_of(square_rows(mean, targets))
    return lambda counts: np.sqrt(statistic(counts))


@metric(
    "regression",
    "RMSE",
    "root mean squared error, in the target's own units",
    "lower",
    "figures",
    brief=True,
    own_units=True,
)
@by_counts(_root_of_mean)
def rmse(mean: ArrayLike, targets: ArrayLike) -> float:
    """Root mean squared error, sqrt(mean (y - m)^2), over data and outputs.

    Args:
        mean, targets: (N, ...), of one shape.

    >>> rmse([0.0, 1.0], [1.0, 2.0])
    1.0
    """
    return math.sqrt(np.nanmean(square_rows(mean, targets)))


@by_counts(lambda mean, sd, targets: mean_of(nll_rows(mean, sd, targets)))
def gaussian_nll(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> float:
    """Negative log-likelihood in nats, mean_n sum_d [(y - m)^2 / (2 sd^2) + log sd + log(2 pi) / 2].

    Args:
        mean, targets: (N, ...), of one shape.
        sd: positive standard deviations of that shape, or one number for all.

    >>> round(gaussian_nll([0.0], [2.0], [1.0]), 4)
    1.7371
    """
    return float(np.nanmean(nll_rows(mean, sd, targets)))


@by_counts(lambda mean, sd, targets: mean_of(crps_rows(mean, sd, targets)))
def crps(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike) -> float:
    """Continuous ranked probability score of N(m, sd^2), in the unit of the target, over data and outputs.

        CRPS = E|Y - y| - E|Y - Y'| / 2 = sd [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)],   z = (y - m) / sd

    Arguments as for `gaussian_nll`. As sd goes to 0 it becomes the absolute error.

    >>> round(crps([0.0], [1.0], [0.0]), 4)  # (sqrt(2) - 1) / sqrt(pi)
    0.2337
    """
    return float(np.nanmean(crps_rows(mean, sd, targets)))


def interval(mean: ArrayLike, sd: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Ends of the central interval of N(m, sd^2) with probability `level`, m -+ sd Phi^-1((1 + level) / 2).

    >>> low, high = interval([0.0], [1.0], level=0.95)
    >>> round(float(high[0]), 4)
    1.96
    """
    m, s = with_rows("mean", mean), scales("sd", sd)
    s = np.broadcast_to(s, m.shape) if s.ndim == 0 else s
    same_shape(mean=m, sd=s)
    return m - half_width(level) * s, m + half_width(level) * s


@by_counts(lambda mean, sd, targets, level=0.95: mean_of(coverage_rows(mean, sd, targets, level)))
def coverage(mean: ArrayLike, sd: ArrayLike, targets: ArrayLike, level: float = 0.95) -> float:
    """Share of targets inside their `interval`, ends included; calibrated predictions have about `level`.

    >>> coverage([0.0, 0.0], [1.0, 1.0], [1.0, 3.0], level=0.95)
    0.5
    """
    return float(np.nanmean(coverage_rows(mean, sd, targets, level)))


@by_counts(lambda sd, level=0.95: mean_of(width_rows(sd, level)))
def sharpness(sd: ArrayLike, level: float = 0.95) -> float:
    """Mean width of the `interval` of standard deviations (N, ...); of two that cover alike, the narrower is better.

    >>> round(sharpness([1.0, 2.0], level=0.95), 3)
    5.88
    """
    return float(width_rows(sd, level).mean())
