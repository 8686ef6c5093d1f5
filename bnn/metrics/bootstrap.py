"""Bootstrap intervals: how much a metric would move with other data from the same source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn._common.checks import share, whole
from bnn.metrics.calibration_interval import calibration_interval
from bnn.metrics.checks import to_numpy
from bnn.metrics.resampling import RESAMPLED, BinGaps, Floats, Statistic, distributions, on_repeated_rows


@dataclass(frozen=True)
class Interval:
    """A metric on the data, and an interval: percentiles of it on resamples of the data.

    Of `ece`, `adaptive_ece` and `classwise_ece` it is the interval of `bnn.metrics.calibration_interval`, for
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
    interval is that of `bnn.metrics.calibration_interval` instead.

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
        found |= {name: _interval(values[name], drawn[name], level) for name in others}
    return {name: found[name] for name in values}


def _interval(value: float, drawn: Floats, level: float) -> Interval:
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
