"""Predictions of positive targets on a log scale: each of K draws says log y ~ N(m_k, s_k^2), so y is lognormal.

Everything here is in the target's own units, from the draws' means and sds of log y: of one lognormal

    E[y] = exp(m + s^2 / 2),    Var[y] = (exp(s^2) - 1) E[y]^2,    quantiles exp(m + s z),

and of their mixture the mean over draws, the law of total variance, and the exponential of the mixture's quantiles.
Where the noise of log y has heavier tails (`df`, as in `bnn.metrics.mixture`) a draw is a mixture of lognormals; its
mean is then often that of the widest of them, and the median, the middle of intervals, says more.
Wild sds of log y (200 is e^20000) have moments beyond all floats: means are at most LARGEST and sds at most as large,
so that sums of squares stay finite. NLL, and intervals below that, are exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnn.metrics.checks import Floats
from bnn.metrics.mixture import components, mixture_interval, mixture_nll_rows, with_tails
from bnn.metrics.regression import normal_cdf, per_row, targets_of

LARGEST = 1e100
_LIMIT = math.log(LARGEST)


class LognormalMoments(NamedTuple):
    """Mean and sds (N, ...) of a mixture of K lognormals: aleatoric^2 + epistemic^2 is the variance."""

    mean: Floats
    aleatoric: Floats
    epistemic: Floats


def exponential(logs: Floats) -> Floats:
    """exp, and LARGEST where that is more."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(np.exp(logs), LARGEST))


def positive_targets(targets: ArrayLike) -> Floats:
    """Targets (N, ...) above 0; NaN where one of several is missing."""
    y = targets_of(targets)
    if (y <= 0).any():
        raise ValueError(f"targets on a log scale must be above 0; {(y <= 0).sum()} of {y.size} are not")
    return y


def lognormal_moments(means: ArrayLike, sds: ArrayLike, df: float = math.inf) -> LognormalMoments:
    """Mean, aleatoric and epistemic sd of the mixture, by the law of total variance over the draws.

        mean = 1/K sum_k E_k,   aleatoric^2 = 1/K sum_k (exp(s_k^2) - 1) E_k^2,   epistemic^2 = Var_k E_k

    Args:
        means: (K, N, ...), of log y under K draws.
        sds: of log y, positive, of that shape, or one number for all.
        df: degrees of freedom of the noise of log y; inf: Gaussian.

    >>> mean, aleatoric, epistemic = lognormal_moments([[0.0]], 1.0)
    >>> round(float(mean[0]), 4), round(float(aleatoric[0]), 4), float(epistemic[0])  # sqrt(e), sqrt((e - 1) e)
    (1.6487, 2.1612, 0.0)
    """
    m, s = components(means, sds)
    draws = len(m)
    m, s, weights = with_tails(m, s, df)
    logs = np.minimum(m + 0.5 * np.square(s), _LIMIT)
    noise = np.minimum(2 * logs + _log_expm1(np.square(s)), 2 * _LIMIT)

    def of_draws(values: Floats) -> Floats:
        """The means over the components of each draw, (K, N, ...)."""
        return np.asarray((draws * weights * values).reshape(-1, draws, *values.shape[1:]).sum(axis=0))

    each = of_draws(np.exp(logs))
    within = of_draws(np.exp(noise)) + of_draws(
        np.square(np.exp(logs) - np.tile(each, (len(m) // draws, *[1] * (m.ndim - 1))))
    )
    return LognormalMoments(each.mean(axis=0), np.sqrt(within.mean(axis=0)), each.std(axis=0))


def _log_expm1(values: Floats) -> Floats:
    """log(exp(v) - 1) for v > 0, without overflow."""
    return np.asarray(values + np.log(-np.expm1(-values)))


def lognormal_nll_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> Floats:
    """-log p(y) of every datum (N,): that of log y, and log y for the change of units."""
    y = positive_targets(targets)
    logs = np.log(y)
    return np.asarray(mixture_nll_rows(means, sds, logs, df) + per_row(logs, total=True))


def lognormal_crps_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> Floats:
    """CRPS of every datum (N,): E|Y - y| - E|Y - Y'| / 2, both sums over components."""
    m, s = components(means, sds)
    y = positive_targets(targets)
    m, s, weights = with_tails(m, s, df)
    mean = exponential(m + 0.5 * np.square(s))
    z = (np.log(y) - m) / s
    to_target = (weights * (y * (2 * normal_cdf(z) - 1) - mean * (2 * normal_cdf(z - s) - 1))).sum(axis=0)
    between = np.zeros_like(y)  # E|Y - Y'|: by symmetry twice the mean of E_k (2 P(Y_k > Y_l | weighted by Y_k) - 1)
    for m_l, s_l, weight in zip(m, s, weights, strict=True):
        larger = normal_cdf((m - m_l + np.square(s)) / np.hypot(s, s_l))
        between += 2 * weight * (weights * mean * (2 * larger - 1)).sum(axis=0)
    return per_row(to_target - 0.5 * between)


def lognormal_nll(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> float:
    """Negative log-likelihood in nats, mean_n -log (1/K) sum_k prod_d p(y_nd), a density of y, not of log y.

        p(y) = N(log y; m, s^2) / y

    Args:
        means: (K, N, ...), of log y under K draws.
        sds: of log y, positive, of that shape, or one number for all.
        targets: (N, ...), above 0, in their own units.
        df: degrees of freedom of the noise of log y; inf: Gaussian.

    >>> round(lognormal_nll([[0.0]], 1.0, [math.e]), 4)  # 1 / 2 + log(2 pi) / 2 + 1
    2.4189
    """
    return float(np.nanmean(lognormal_nll_rows(means, sds, targets, df)))


def lognormal_crps(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> float:
    """CRPS of the mixture in closed form, in the target's own units; arguments as for `lognormal_nll`.

        E|Y - y| = y (2 Phi(z) - 1) - E[Y] (2 Phi(z - s) - 1),   z = (log y - m) / s
        E|Y_k - Y_l| = E_k (2 Phi(d_kl) - 1) + E_l (2 Phi(d_lk) - 1),   d_kl = (m_k - m_l + s_k^2) / sqrt(s_k^2 + s_l^2)

    >>> round(lognormal_crps([[0.0]], 1.0, [1.0]), 4)  # E[Y] (1 - 2 Phi(-1)) - E[Y] (2 Phi(1 / sqrt(2)) - 1)
    0.2674
    """
    return float(np.nanmean(lognormal_crps_rows(means, sds, targets, df)))


def lognormal_interval(
    means: ArrayLike, sds: ArrayLike, level: float = 0.95, df: float = math.inf
) -> tuple[Floats, Floats]:
    """Ends (N, ...) of the central interval of the mixture, never below 0: exp of those of log y.

    >>> low, high = lognormal_interval([[0.0]], 1.0, level=0.9)
    >>> round(float(low[0]), 4), round(float(high[0]), 4)
    (0.193, 5.1803)
    """
    low, high = mixture_interval(means, sds, level, df)
    return exponential(low), exponential(high)
