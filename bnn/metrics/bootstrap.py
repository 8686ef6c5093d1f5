"""Bootstrap intervals: how much a metric would move with other data from the same source.

Calibration errors have intervals of their own. Such an error is sum_b |g_b|, g_b the gap of bin b times its share.
Noise never cancels between bins, so the error of a calibrated network is not 0 but of the size of its noise, and
resampling adds noise once more: percentiles of resamples lie above the truth. So the question is turned round: which
true errors would give the measured one?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn._common.checks import share, whole
from bnn.metrics.checks import to_numpy
from bnn.metrics.resampling import CHUNK, RESAMPLED, BinGaps, Floats, Statistic, distributions, on_repeated_rows

HALVINGS = 30  # of [0, 1]: ends are exact to 1e-9


@dataclass(frozen=True)
class Interval:
    """A metric on the data, and an interval: percentiles of it on resamples of the data.

    Of `ece`, `adaptive_ece` and `classwise_ece` it is the interval of `calibration_interval`, for
    percentiles of a calibration error lie above the truth; there the value is always inside.

    >>> print(Interval(0.9, 0.875, 0.92))
    0.9 [0.875, 0.92]
    """

    value: float
    low: float
    high: float
    left_out: int = 0  # resamples on which the metric is undefined

    def __str__(self) -> str:
        left_out = f" ({self.left_out} resamples left out)" if self.left_out else ""
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]{left_out}"


def bootstrap(
    metric: Callable[..., float],
    *arrays: Any,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[int] | None = None,
) -> Interval:
    """The metric of the arrays, with a percentile bootstrap interval over their rows.

        value = m(x_1..x_N),   [low, high] = quantiles (1 -+ level) / 2 of m(x_i1..x_iN) over resamples i ~ U{1..N}^N

    The metrics of `bnn.metrics` run on all resamples at once (see `bnn.metrics.resampling`), also with options set by
    `functools.partial`. Any other function runs resample by resample, on NumPy arrays. Equal arguments give equal
    intervals. A resample on which the metric raises ValueError or is not finite is left out and counted; it is an
    error if that leaves none.

    Resampling adds noise, and noise can only raise a calibration error, so percentiles of one lie above the truth. For
    `ece`, `adaptive_ece` and `classwise_ece` (themselves or by `functools.partial`, not inside another function) the
    interval is that of `calibration_interval` instead.

    Args:
        metric: maps the arrays to a number.
        arrays: each with data along dimension 0.
        resamples: their number.
        level: share of the resamples inside the interval.
        seed: of the resamples.
        groups: for each array the index of its group; arrays of one group have their rows in common and are resampled
            together. None: all in one group, but for AUROC, AUPR and FPR95 in- and out-of-distribution apart.

    >>> from bnn.metrics import rmse
    >>> bootstrap(rmse, [0.0, 1.0, 2.0, 3.0], [0.5, 1.0, 2.0, 2.0], resamples=200)
    Interval(value=0.559..., low=0.0, high=0.866..., left_out=0)
    """
    function, options = (metric.func, metric.keywords) if isinstance(metric, partial) else (metric, {})
    known = None if isinstance(metric, partial) and metric.args else RESAMPLED.get(function)
    usual = list(range(len(arrays))) if known is not None and known.apart else [0] * len(arrays)
    groups = usual if groups is None else list(groups)
    rows = [to_numpy(array) for array in arrays]
    sizes = _sizes(rows, groups)
    statistic: Statistic | BinGaps
    if known is not None and groups == usual:
        statistic = known.make(*arrays, **options)
    else:
        statistic = on_repeated_rows(metric, rows, groups)
    value = float(metric(*(arrays if known is not None else rows)))
    return intervals({"metric": value}, {"metric": statistic}, sizes, resamples, level, seed)["metric"]


def intervals(
    values: dict[str, float],
    statistics: Mapping[str, Statistic | BinGaps],
    sizes: Sequence[int],
    resamples: int,
    level: float,
    seed: int,
) -> dict[str, Interval]:
    """Intervals around the values of several metrics, all from the same resamples of groups of these sizes."""
    whole("resamples", resamples)
    whole("seed", seed, least=0)
    share("level", level)
    undefined = [name for name, value in values.items() if not np.isfinite(value)]
    if undefined:
        raise ValueError(f"undefined on the data itself, so there is nothing to resample: {undefined}")
    gaps = {name: one for name, one in statistics.items() if isinstance(one, BinGaps)}
    others = {name: one for name, one in statistics.items() if not isinstance(one, BinGaps)}
    found = {
        name: Interval(values[name], *calibration_interval(values[name], one, sizes[0], resamples, level, seed))
        for name, one in gaps.items()
    }
    if others:
        drawn = distributions(others, sizes, resamples, seed)
        found |= {name: interval_of(values[name], drawn[name], level) for name in others}
    return {name: found[name] for name in values}


def interval_of(value: float, drawn: Floats, level: float) -> Interval:
    """The interval of a value from those on all resamples (R,); what is not finite is left out, and counted."""
    defined = drawn[np.isfinite(drawn)]
    if defined.size == 0:
        raise ValueError(f"the metric is undefined on all {drawn.size} resamples; it needs more data")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), drawn.size - defined.size)


def _sizes(arrays: Sequence[NDArray[Any]], groups: Sequence[int]) -> list[int]:
    """The number of rows of every group."""
    if not arrays:
        raise ValueError("bootstrap needs at least one array to resample")
    if len(groups) != len(arrays) or set(groups) != set(range(len(set(groups)))):
        raise ValueError(f"groups must give each of the {len(arrays)} arrays one of 0, 1, ...; got {list(groups)}")
    sizes: dict[int, int] = {}
    for array, group in zip(arrays, groups, strict=True):
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"arrays must have rows to resample; got shape {array.shape}")
        if sizes.setdefault(group, len(array)) != len(array):
            raise ValueError(f"arrays that are resampled together must be equally long; got {[len(a) for a in arrays]}")
    return [sizes[group] for group in range(len(sizes))]


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
