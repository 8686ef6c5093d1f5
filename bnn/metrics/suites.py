"""All metrics of a kind at once, on the same resamples: what `bnn.evaluate` reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from bnn._common.checks import check_choice
from bnn.metrics import regression
from bnn.metrics.bootstrap import Interval, intervals
from bnn.metrics.checks import numbers, vector
from bnn.metrics.classification import checked
from bnn.metrics.predicted import SCALES, predictive_interval
from bnn.metrics.registry import Metric, metrics
from bnn.metrics.resampling import BinGaps, Statistic

Call = tuple[Metric, Mapping[str, Any]]  # a metric and what it is given


def classification_metrics(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    temperature: float | None = None,
    brief: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Every registered metric of class probabilities, accuracy, nll, brier, ece, ..., with its bootstrap interval.

    Args:
        probs: (N, C), rows that sum to 1.
        labels: (N,), class indices.
        bins: of the calibration errors.
        temperature: adds "nll_after_temperature", at this T (of `temperature_scaling`, on validation data).
        brief: the most important ones only: accuracy, nll and ece.
        resamples, level, seed: as for `bootstrap`.

    >>> print(classification_metrics([[0.9, 0.1], [0.5, 0.5]] * 50, [0, 1] * 50, seed=1)["accuracy"])
    0.5 [0.4, 0.6]
    """
    p, y = checked(probs, labels)
    given = {"probs": p, "labels": y, "bins": bins, "temperature": temperature}
    return _run(_calls("classification", given, brief), [len(y)], resamples, level, seed)


def detection_metrics(
    scores_in: ArrayLike, scores_out: ArrayLike, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Auroc, aupr and fpr95 with bootstrap intervals, the two sets resampled apart; arguments as for `auroc`.

    >>> print(detection_metrics([0.1, 0.2, 0.3], [0.7, 0.8])["auroc"])
    1 [1, 1]
    """
    sets = [vector(name, s, finite=False) for name, s in (("scores_in", scores_in), ("scores_out", scores_out))]
    given = dict(zip(("scores_in", "scores_out"), sets, strict=True))
    return _run(_calls("detection", given), [len(one) for one in sets], resamples, level, seed)


def regression_metrics(
    mean: ArrayLike,
    sd: ArrayLike,
    targets: ArrayLike,
    *,
    draws: tuple[ArrayLike, ArrayLike] | None = None,
    losses: ArrayLike | None = None,
    scale: str = "linear",
    df: float = math.inf,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    brief: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Rmse, nll, crps, and coverage_90, sharpness_90 and the like for every level, with bootstrap intervals.

    Args:
        mean, targets: (N, ...), of one shape; of several targets those that are missing are NaN, and left out.
        sd: predictive standard deviations of that shape, or one number for all.
        draws: means and sds (K, N, ...) of the draws: NLL, CRPS and intervals are then those of their mixture, not of
            the Gaussian with its moments.
        losses: -log p of every datum (N,), where only the likelihood can tell: the NLL is then their mean.
        scale: "log" where `draws` are of the logarithm of positive targets; all else is in their own units.
        df: degrees of freedom of the noise of `draws`, as `likelihood.df()` gives them; inf: Gaussian.
        levels: of the intervals that are measured.
        brief: the most important ones only: rmse, nll and crps.
        resamples, level, seed: as for `bootstrap`.

    >>> list(regression_metrics([0.0, 1.0], 1.0, [0.5, 1.0], levels=[0.9]))
    ['rmse', 'nll', 'crps', 'coverage_90', 'sharpness_90']
    """
    check_choice("scale", scale, SCALES)
    if scale == "log" and draws is None:
        raise ValueError("scale='log' needs draws: the means and sds (K, N, ...) of log targets")
    y, m, s = regression.targets_of(targets), regression.with_rows("mean", mean), numbers("sd", sd)
    given = {"mean": m, "sd": s, "targets": y, "draws": draws, "losses": losses, "scale": scale, "df": df}
    calls = _calls("regression", given, brief)
    for one in [] if brief else levels:
        low, high = predictive_interval(m, s, draws, one, scale, df)
        within = given | {"low": low, "high": high, "level": one}
        calls += [(each.at(one), within) for each in metrics("regression") if each.of_intervals]
    return _run(calls, [len(y)], resamples, level, seed)


def _calls(task: str, given: Mapping[str, Any], brief: bool = False) -> list[Call]:
    """The metrics of a task that can be had from what is given, but for those of intervals."""
    there = {name for name, value in given.items() if value is not None}
    wanted = [one for one in metrics(task) if one.brief or not brief]
    return [(one, given) for one in wanted if one.needs <= there]


def _run(calls: Iterable[Call], sizes: list[int], resamples: int, level: float, seed: int) -> dict[str, Interval]:
    """All of them on the same resamples of groups of these sizes."""
    values: dict[str, float] = {}
    statistics: dict[str, Statistic | BinGaps] = {}
    for one, given in calls:
        values[one.name], statistics[one.name] = one.measured(given)
    return intervals(values, statistics, sizes, resamples, level, seed)
