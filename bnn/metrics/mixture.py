"""The exact predictive distribution of K draws: a mixture of K Gaussians, where mean and variance are only its moments.

A draw is one component for all outputs of a datum, so the NLL is that of the outputs together; CRPS and intervals are
per output.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from bnn._common.checks import share
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


def mixture_nll_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike) -> Floats:
    """-log (1/K) sum_k prod_d N(y_d; m_kd, sd_kd^2) of every datum (N,)."""
    m, s, y = _checked(means, sds, targets)
    logs = log_density((y - m) / s, s).reshape(*m.shape[:2], -1)  # (K, N, D)
    known = known_rows(y)
    logs = np.where(np.isnan(logs), 0.0, logs).sum(axis=2)
    top = logs.max(axis=0)
    return np.asarray(np.where(known, math.log(len(m)) - top - np.log(np.exp(logs - top).sum(axis=0)), np.nan))


def mixture_crps_rows(means: ArrayLike, sds: ArrayLike, targets: ArrayLike) -> Floats:
    """CRPS of every datum (N,): E|Y - y| - E|Y - Y'| / 2, both sums over components."""
    m, s, y = _checked(means, sds, targets)
    to_target = expected_distance((y - m) / s, s).mean(axis=0)
    between = np.zeros_like(y)
    for m_k, s_k in zip(m, s, strict=True):
        both = np.hypot(s, s_k)
        between += expected_distance((m - m_k) / both, both).mean(axis=0) / len(m)
    return per_row(to_target - 0.5 * between)


def mixture_nll(means: ArrayLike, sds: ArrayLike, targets: ArrayLike) -> float:
    """Negative log-likelihood in nats, mean_n -log (1/K) sum_k prod_d N(y_nd; m_knd, sd_knd^2).

    Args:
        means: (K, N, ...), of K draws.
        sds: positive, of that shape, or one number for all.
        targets: (N, ...).

    >>> round(mixture_nll([[[-1.0]], [[1.0]]], 1.0, [[0.0]]), 4)  # 1 / 2 + log(2 pi) / 2
    1.4189
    """
    return float(np.nanmean(mixture_nll_rows(means, sds, targets)))


def mixture_crps(means: ArrayLike, sds: ArrayLike, targets: ArrayLike) -> float:
    """CRPS of the mixture in closed form, over data and outputs; arguments as for `mixture_nll`.

    >>> round(mixture_crps([[0.0], [0.0]], 1.0, [0.0]), 4)  # of one Gaussian
    0.2337
    """
    return float(np.nanmean(mixture_crps_rows(means, sds, targets)))


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


def mixture_interval(means: ArrayLike, sds: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Ends (N, ...) of the central interval of the mixture: its quantiles (1 -+ level) / 2, by bisection.

    >>> low, high = mixture_interval([[0.0], [0.0]], 1.0, level=0.95)
    >>> round(float(high[0]), 4)
    1.96
    """
    m, s = components(means, sds)
    tail = (1 - share("level", level)) / 2
    return _quantile(m, s, tail), _quantile(m, s, 1 - tail)


def _quantile(m: Floats, s: Floats, probability: float) -> Floats:
    """It lies between the least and the largest quantile of the components."""
    of_components = m + NormalDist().inv_cdf(probability) * s
    low, high = of_components.min(axis=0), of_components.max(axis=0)
    for _ in range(52):  # bits of float64
        middle = 0.5 * (low + high)
        above = normal_cdf((middle - m) / s).mean(axis=0) >= probability
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(0.5 * (low + high))
