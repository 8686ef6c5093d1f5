"""Metrics as functions of how often each datum counts, which is all that a bootstrap resample changes.

A resample of N rows is a vector of counts (N,) that sum to N. A metric that is a mean over data is then one product,
counts @ values / N, for all resamples at once, and what needs sorting sorts once. Metrics join by the decorator
`by_counts`; `bootstrap` runs any other function on the repeated rows. Calibration errors, which resampling can only
raise, give the gaps of their bins instead (see `bnn.metrics.bootstrap.calibration_interval`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]  # the counts (R, N_g) of each group of rows -> the metric of every resample (R,)
Metric = TypeVar("Metric", bound=Callable[..., float])
Name = TypeVar("Name", bound=Hashable)

CHUNK = 2**20  # counts held at a time, 8 MiB


class BinGaps(NamedTuple):
    """What a calibration error is the sum of: the gaps of its bins, which are linear in the weights of the data."""

    of: Callable[[Floats], Floats]  # weights (R, N) -> sum_i w_i (p_i - y_i) / N of every bin (R, B)


class Resampled(NamedTuple):
    """How a metric is resampled."""

    make: Callable[..., Statistic | BinGaps]  # of the arguments of the metric
    apart: bool  # every argument has rows of its own


RESAMPLED: dict[Callable[..., float], Resampled] = {}


def by_counts(make: Callable[..., Statistic | BinGaps], apart: bool = False) -> Callable[[Metric], Metric]:
    """Decorates a metric with the function that makes, of the same arguments, its `Statistic` or `BinGaps`."""

    def join(metric: Metric) -> Metric:
        if metric in RESAMPLED:
            raise ValueError(f"{metric} is resampled already")
        RESAMPLED[metric] = Resampled(make, apart)
        return metric

    return join


def mean_of(values: NDArray[Any]) -> Statistic:
    """The mean of values (N,), without those that are NaN, which say that a datum does not count."""
    values = values.astype(np.float64)
    known = ~np.isnan(values)
    if known.all():
        return lambda counts: counts @ values / len(values)
    values, share = np.where(known, values, 0.0), known.astype(np.float64)
    return lambda counts: _ratio(counts @ values, counts @ share)


def _ratio(sums: Floats, counts: Floats) -> Floats:
    """NaN where nothing counts."""
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def one_by_one(function: Callable[..., float]) -> Statistic:
    """Of a function of the counts (N_g,) of one resample; where it raises ValueError the metric is undefined, NaN."""

    def statistic(*counts: Floats) -> Floats:
        return np.array([_or_nan(function, row) for row in zip(*counts, strict=True)])

    return statistic


def _or_nan(function: Callable[..., float], counts: Sequence[Floats]) -> float:
    try:
        return float(function(*counts))
    except ValueError:
        return float("nan")


def on_repeated_rows(metric: Callable[..., float], arrays: Sequence[NDArray[Any]], groups: Sequence[int]) -> Statistic:
    """Of any metric of the arrays, whose rows are repeated as often as their group's counts say."""

    def of_one(*counts: Floats) -> float:
        rows = [np.repeat(np.arange(len(c)), c.astype(np.intp)) for c in counts]
        return metric(*(array[rows[group]] for array, group in zip(arrays, groups, strict=True)))

    return one_by_one(of_one)


def tie_means(values: NDArray[Any], group: NDArray[np.intp], counts: Floats) -> Floats:
    """The mean, weighted by counts, of the values that share a group, one for each datum (N,); 0 where none counts."""
    total = np.bincount(group, weights=counts)
    means = np.bincount(group, weights=counts * values) / np.where(total > 0, total, 1)
    return np.asarray(means[group])


def resamples_of(sizes: Sequence[int], resamples: int, seed: int) -> Iterator[tuple[Floats, ...]]:
    """Counts of `resamples` resamples with replacement, in chunks: for each group of N_g rows an array (r, N_g)."""
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // max(sizes))
    for start in range(0, resamples, rows):
        r = min(rows, resamples - start)
        yield tuple(_counts(rng, r, n) for n in sizes)


def _counts(rng: np.random.Generator, r: int, n: int) -> Floats:
    drawn = rng.integers(n, size=(r, n)) + n * np.arange(r)[:, None]
    return np.bincount(drawn.ravel(), minlength=r * n).reshape(r, n).astype(np.float64)


def distributions(
    statistics: dict[Name, Statistic], sizes: Sequence[int], resamples: int, seed: int
) -> dict[Name, Floats]:
    """Every statistic on the same resamples, each (resamples,)."""
    parts: dict[Name, list[Floats]] = {name: [] for name in statistics}
    for counts in resamples_of(sizes, resamples, seed):
        for name, statistic in statistics.items():
            parts[name].append(statistic(*counts))
    return {name: np.concatenate(part) for name, part in parts.items()}
