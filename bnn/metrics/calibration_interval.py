"""Intervals of calibration errors, which noise can only raise.

A calibration error is sum_b |g_b|, g_b the gap of bin b times its share. Noise never cancels between bins, so the error
of a calibrated network is not 0 but of the size of its noise, and resampling adds noise once more: percentiles of
resamples lie above the truth. So the question is turned round: which true errors would give the measured one?
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bnn.metrics.resampling import CHUNK, BinGaps, Floats

HALVINGS = 30  # of [0, 1]: ends are exact to 1e-9


def calibration_interval(
    value: float, gaps: BinGaps, n: int, resamples: int, level: float, seed: int
) -> tuple[float, float]:
    """Low and high end: the true errors under which the measured one is neither too large nor too small.

        error(theta) = sum_b |theta d_b + e_b|,   d = g / sum_b |g_b|,   e = (1/N) sum_i s_i (r_i - g),   s_i = -1 or 1
        low: quantile (1 + level) / 2 of error(low) = value,   high: quantile (1 - level) / 2 of error(high) = value

    r_ib = p_i - y_i where datum i is in bin b and else 0; the signs s_i are random. At theta = 0 the network is
    calibrated; larger errors have the bins' gaps in the proportion in which they were measured. The ends are within
    [0, 1] and the value is always inside. Where the value is too small for any theta, such as 0 by luck, low is 0 and
    high is the value plus the quantile of the noise, as if the signs of the gaps were known.

    Args:
        value: the measured error.
        gaps: of the bins.
        n: number of data.
        resamples: number of drawn sign vectors.
        level, seed: as for `bootstrap`.
    """
    measured = gaps.of(np.ones((1, n)))[0]  # (B,)
    noise = _noise(gaps, measured, n, resamples, seed)  # (R, B)
    direction = measured / value if value > 0 else measured

    def quantile(q: float, theta: float) -> float:
        return float(np.quantile(np.abs(noise + theta * direction).sum(axis=1), q))

    few, most = (1 - level) / 2, (1 + level) / 2
    low = _root(partial(quantile, most), value)
    if quantile(few, 0.0) >= value:
        high = value + float(np.quantile(noise @ np.where(measured < 0, -1.0, 1.0), most))
    else:
        high = _root(partial(quantile, few), value)
    return min(low, value), min(max(high, value), 1.0)


def _root(quantile: Callable[[float], float], value: float) -> float:
    """The theta in [0, 1] where an increasing quantile reaches the value, the nearer end where it does not."""
    low, high = 0.0, 1.0
    if quantile(low) >= value:
        return low
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if quantile(middle) < value else (low, middle)
    return high


def _noise(gaps: BinGaps, measured: Floats, n: int, resamples: int, seed: int) -> Floats:
    """Errors e of the bins' gaps (R, B)."""
    rng = np.random.default_rng(seed)
    rows, parts = max(1, CHUNK // n), []
    for start in range(0, resamples, rows):
        ones = rng.integers(2, size=(min(rows, resamples - start), n), dtype=np.int8)
        signs = 2 * ones.astype(np.float64) - 1
        parts.append(gaps.of(signs) - signs.mean(axis=1)[:, None] * measured)
    return np.concatenate(parts)
