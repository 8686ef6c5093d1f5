"""The exact predictive distribution of K draws: a mixture of K Gaussians, where mean and variance are only its moments.

A draw is one component for all outputs of a datum, so the NLL is that of the outputs together; CRPS and intervals are
per output. Noise with heavier tails, of `df` degrees of freedom as `likelihood.df()` gives, makes every draw itself a
mixture of J Gaussians (`bnn.functional.noise.tails`): then there are K J components, of unequal weights.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from bnn._common.checks import share
from bnn.functional.noise import tails
from bnn.metrics.checks import Floats, numbers, same_shape
from bnn.metrics.regression import (
    expected_distance,
    known_rows,
    log_density,
    normal_cdf,
    per_row,
    scales,
    targets_of,
)

Draws = tuple[ArrayLike, ArrayLike]  # means and sds (K, N, ...)


def components(means: ArrayLike, sds: ArrayLike) -> tuple[Floats, Floats]:
    """Means and sds, both (K, N, ...); a single sd is that of all."""
    m, s = numbers("means", means), scales("sds", sds)
    if m.ndim < 2:
        raise ValueError(f"means must have shape (K, N, ...): K draws first; got {m.shape}")
    s = np.broadcast_to(s, m.shape) if s.ndim == 0 else s
    same_shape(means=m, sds=s)
    return m, s


def _checked(means: ArrayLike, sds: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats, Floats]:
    m, s = components(means, sds)
    y = targets_of(targets)
    if y.shape != m.shape[1:]:
        raise ValueError(f"targets for means of shape {m.shape} must have shape {m.shape[1:]}; got {y.shape}")
    return m, s, y


def with_tails(m: Floats, s: Floats, df: float) -> tuple[Floats, Floats, Floats]:
    """Means and sds (J K, N, ...) of all components, from those of K draws, and their weights (J K, 1, ...)."""
    probabilities, scales = map(np.asarray, tails(df))
    ones = [1] * (m.ndim - 1)
    sds = (scales.reshape(-1, 1, *ones) * s).reshape(-1, *s.shape[1:])
    weights = np.repeat(probabilities / len(m), len(m)).reshape(-1, *ones)
    return np.tile(m, (len(scales), *ones)), sds, weights


def mixture_nll_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> Floats:
    """-log sum_i w_i prod_d N(y_d; m_id, sd_id^2) of every datum (N,)."""
    m, s, y = _checked(means, sds, targets)
    known = known_rows(y)
    m, s, weights = with_tails(m, s, df)
    logs = log_density((y - m) / s, s).reshape(*m.shape[:2], -1)  # (J K, N, D)
    logs = np.where(np.isnan(logs), 0.0, logs).sum(axis=2) + np.log(weights.reshape(-1, 1))
    top = logs.max(axis=0)
    return np.asarray(np.where(known, -top - np.log(np.exp(logs - top).sum(axis=0)), np.nan))


def mixture_crps_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> Floats:
    """CRPS of every datum (N,): E|Y - y| - E|Y - Y'| / 2, both sums over components, of pairs each once."""
    m, s, y = _checked(means, sds, targets)
    m, s, weights = with_tails(m, s, df)
    to_target = (weights * expected_distance((y - m) / s, s)).sum(axis=0)
    half = np.zeros_like(y)
    for i, weight in enumerate(weights):
        both = np.hypot(s[i:], s[i])
        twice = np.where(np.arange(i, len(m)) > i, 1.0, 0.5).reshape(-1, *[1] * y.ndim)
        half += weight * (twice * weights[i:] * expected_distance((m[i:] - m[i]) / both, both)).sum(axis=0)
    return per_row(to_target - half)


def mixture_nll(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> float:
    """Negative log-likelihood in nats, mean_n -log (1/K) sum_k prod_d N(y_nd; m_knd, sd_knd^2).

    Args:
        means: (K, N, ...), of K draws.
        sds: positive, of that shape, or one number for all.
        targets: (N, ...).
        df: degrees of freedom of the noise; inf: Gaussian.

    >>> round(mixture_nll([[[-1.0]], [[1.0]]], 1.0, [[0.0]]), 4)  # 1 / 2 + log(2 pi) / 2
    1.4189
    """
    return float(np.nanmean(mixture_nll_rows(means, sds, targets, df)))


def mixture_crps(means: ArrayLike, sds: ArrayLike, targets: ArrayLike, df: float = math.inf) -> float:
    """CRPS of the mixture in closed form, over data and outputs; arguments as for `mixture_nll`.

    >>> round(mixture_crps([[0.0], [0.0]], 1.0, [0.0]), 4)  # of one Gaussian
    0.2337
    """
    return float(np.nanmean(mixture_crps_rows(means, sds, targets, df)))


def sample_crps(samples: ArrayLike, targets: ArrayLike) -> float:
    """CRPS of the K samples themselves, mean_k |x_k - y| - 1/(2 K^2) sum_kl |x_k - x_l|, over data and outputs.

    With few samples it is too high by about E|Y - Y'| / (2 K).

    Args:
        samples: (K, N, ...), of the target, noise included.
        targets: (N, ...).

    >>> sample_crps([[0.0], [2.0]], [1.0])  # 1 - 1 / 2
    0.5
    """
    x, _, y = _checked(samples, 1.0, targets)
    rank = np.arange(1, len(x) + 1).reshape(-1, *[1] * y.ndim)
    spread = ((2 * rank - len(x) - 1) * np.sort(x, axis=0)).sum(axis=0) / len(x) ** 2  # half the mean distance
    return float(np.nanmean(per_row(np.abs(x - y).mean(axis=0) - spread)))


def mixture_cdf(means: ArrayLike, sds: ArrayLike, values: ArrayLike, df: float = math.inf) -> Floats:
    """P(Y <= value) under the mixture, for values (N, ...); NaN where a value is.

    >>> float(mixture_cdf([[0.0], [2.0]], 1.0, [1.0])[0])
    0.5
    """
    m, s = components(means, sds)
    return _cdf(*with_tails(m, s, df), np.asarray(values, dtype=np.float64))


def _cdf(m: Floats, s: Floats, weights: Floats, values: Floats) -> Floats:
    return np.asarray((weights * normal_cdf((values - m) / s)).sum(axis=0))


def mixture_interval(
    means: ArrayLike, sds: ArrayLike, level: float = 0.95, df: float = math.inf
) -> tuple[Floats, Floats]:
    """Ends (N, ...) of the central interval of the mixture: its quantiles (1 -+ level) / 2, by bisection.

    >>> low, high = mixture_interval([[0.0], [0.0]], 1.0, level=0.95)
    >>> round(float(high[0]), 4)
    1.96
    """
    m, s = components(means, sds)
    tail, parts = (1 - share("level", level)) / 2, with_tails(m, s, df)
    return _quantile(*parts, tail), _quantile(*parts, 1 - tail)


def _quantile(m: Floats, s: Floats, weights: Floats, probability: float) -> Floats:
    """It lies between the least and the largest quantile of the components."""
    of_components = m + NormalDist().inv_cdf(probability) * s
    low, high = of_components.min(axis=0), of_components.max(axis=0)
    for _ in range(52):  # bits of float64
        middle = 0.5 * (low + high)
        above = _cdf(m, s, weights, middle) >= probability
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(0.5 * (low + high))
