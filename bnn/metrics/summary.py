"""All metrics of a kind at once, on the same resamples: what `bnn.evaluate` reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnn.metrics import mixture, regression
from bnn.metrics.bootstrap import Interval, intervals
from bnn.metrics.checks import Floats, vector
from bnn.metrics.classification import accuracy, adaptive_ece, brier, classwise_ece, ece, nll
from bnn.metrics.detection import aupr, auroc, fpr95
from bnn.metrics.resampling import RESAMPLED, Statistic, mean_of
from bnn.metrics.selective import aurc
from bnn.metrics.temperature import apply_temperature

Call = tuple[Callable[..., float], tuple[Any, ...], dict[str, Any]]  # a metric, its arrays, its options


def classification_metrics(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    temperature: float | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Accuracy, nll, brier, ece, adaptive_ece, classwise_ece and aurc, each with its bootstrap interval.

    Args:
        probs: (N, C), rows that sum to 1.
        labels: (N,), class indices.
        bins: of the calibration errors.
        temperature: adds "nll_after_temperature", at this T (of `temperature_scaling`, on validation data).
        resamples, level, seed: as for `bootstrap`.

    >>> print(classification_metrics([[0.9, 0.1], [0.5, 0.5]] * 50, [0, 1] * 50, seed=1)["accuracy"])
    0.5 [0.4, 0.6]
    """
    both = (probs, labels)
    calls: dict[str, Call] = {"accuracy": (accuracy, both, {}), "nll": (nll, both, {}), "brier": (brier, both, {})}
    for metric in (ece, adaptive_ece, classwise_ece):
        calls[metric.__name__] = (metric, both, {"bins": bins})
    calls["aurc"] = (aurc, both, {})
    if temperature is not None:
        calls["nll_after_temperature"] = (nll, (apply_temperature(probs, temperature), labels), {})
    return _run(calls, resamples, level, seed)


def detection_metrics(
    scores_in: ArrayLike, scores_out: ArrayLike, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Auroc, aupr and fpr95 with bootstrap intervals, the two sets resampled apart; arguments as for `auroc`.

    >>> print(detection_metrics([0.1, 0.2, 0.3], [0.7, 0.8])["auroc"])
    1 [1, 1]
    """
    sets = (vector("scores_in", scores_in, finite=False), vector("scores_out", scores_out, finite=False))
    return _run({m.__name__: (m, sets, {}) for m in (auroc, aupr, fpr95)}, resamples, level, seed)


def _run(calls: dict[str, Call], resamples: int, level: float, seed: int) -> dict[str, Interval]:
    """The metrics of one kind: all on the rows of the same arrays."""
    values = {name: metric(*arrays, **options) for name, (metric, arrays, options) in calls.items()}
    statistics = {name: RESAMPLED[metric].make(*arrays, **options) for name, (metric, arrays, options) in calls.items()}
    metric, arrays, _ = next(iter(calls.values()))
    sizes = [len(array) for array in (arrays if RESAMPLED[metric].apart else arrays[-1:])]
    return intervals(values, statistics, sizes, resamples, level, seed)


def regression_metrics(
    mean: ArrayLike,
    sd: ArrayLike,
    targets: ArrayLike,
    *,
    draws: tuple[ArrayLike, ArrayLike] | None = None,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Rmse, nll, crps, and coverage_90, sharpness_90 and the like for every level, with bootstrap intervals.

    Args:
        mean, targets: (N, ...), of one shape.
        sd: predictive standard deviations of that shape, or one number for all.
        draws: means and sds (K, N, ...) of the draws: NLL, CRPS and intervals are then those of their mixture, not of
            the Gaussian with its moments.
        levels: of the intervals that are measured.
        resamples, level, seed: as for `bootstrap`.

    >>> list(regression_metrics([0.0, 1.0], 1.0, [0.5, 1.0], levels=[0.9]))
    ['rmse', 'nll', 'crps', 'coverage_90', 'sharpness_90']
    """
    rows = {"rmse": regression.square_rows(mean, targets)}
    nll_rows, crps_rows = regression.nll_rows(mean, sd, targets), regression.crps_rows(mean, sd, targets)
    between: Callable[[float], tuple[Floats, Floats]] = partial(regression.interval, mean, sd)
    if draws is not None:
        nll_rows, crps_rows = (f(*draws, targets) for f in (mixture.mixture_nll_rows, mixture.mixture_crps_rows))
        between = partial(mixture.mixture_interval, *draws)
    rows |= {"nll": nll_rows, "crps": crps_rows}
    y = regression.with_rows("targets", targets)
    for one in levels:
        low, high = between(one)
        rows[f"coverage_{100 * one:g}"] = regression.per_row(((low <= y) & (y <= high)).astype(np.float64))
        rows[f"sharpness_{100 * one:g}"] = regression.per_row(high - low)
    statistics: dict[str, Statistic] = {name: mean_of(row) for name, row in rows.items()}
    values = {name: float(row.mean()) for name, row in rows.items()}
    mean_square, values["rmse"] = statistics["rmse"], float(np.sqrt(values["rmse"]))
    statistics["rmse"] = lambda counts: np.sqrt(mean_square(counts))
    return intervals(values, statistics, [len(y)], resamples, level, seed)
