"""Several scores on the same resamples: which one does best, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnn._common.checks import share, whole
from bnn.metrics.bootstrap import Interval, interval_of
from bnn.metrics.checks import vector
from bnn.metrics.registry import Metric, metrics
from bnn.metrics.resampling import RESAMPLED, BinGaps, Floats, Statistic, distributions
from bnn.metrics.selective import risk_area

Key = tuple[str, str, str]  # set, score, metric
Drawn = dict[Key, tuple[float, Floats]]  # the value on the data, and those on all resamples (R,)
MEAN = ""  # in place of a set: the mean over all of them


@dataclass(frozen=True)
class Compared:
    """Scores side by side, on one set or on the mean of several.

    Args:
        detection: {score: {metric: interval}}.
        behind: {score: {metric: interval}}: how much worse a score is than the best one, on the same resamples. It is
            worse for certain where the interval is above 0; the best has none.
    """

    detection: dict[str, dict[str, Interval]]
    behind: dict[str, dict[str, Interval]]


def detection_comparison(
    scores_in: Mapping[str, ArrayLike],
    scores_out: Mapping[str, Mapping[str, ArrayLike]],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[dict[str, Compared], Compared]:
    """Every score on every set of out-of-distribution inputs: auroc, aupr, fpr95, and how far each is behind the best.

    The test inputs are resampled once for all scores and sets, and each set once for all scores, so that differences
    between scores do not carry the noise which they share:

        behind_s = best - m_s on resample r,  best the score that is best on the data,  r = 1..resamples

    Args:
        scores_in: {score: (N,)}, scores of the same N inputs from the distribution.
        scores_out: {set: {score: (M,)}}; a score that says nothing about a set may be missing there.
        resamples, level, seed: as for `bootstrap`.

    Returns:
        One for each set, and one for the mean over sets, of the scores that all sets have.

    >>> inside = {"one": [0.1, 0.2, 0.3, 0.4], "two": [0.4, 0.3, 0.2, 0.1]}
    >>> each, mean = detection_comparison(inside, {"far": {"one": [0.7, 0.8], "two": [0.2, 0.5]}}, resamples=50)
    >>> print(each["far"].detection["one"]["auroc"], each["far"].behind["two"]["auroc"].value)
    1 [1, 1] 0.3125
    """
    whole("resamples", resamples)
    share("level", level)
    inside = {name: vector(f"scores_in[{name!r}]", one, finite=False) for name, one in scores_in.items()}
    sizes = [_common_length("scores_in", inside)]
    drawn_from: dict[Key, tuple[float, Statistic]] = {}
    for place, (name, scores) in enumerate(scores_out.items(), 1):
        outside = {s: vector(f"scores_out[{name!r}][{s!r}]", one, finite=False) for s, one in scores.items()}
        sizes.append(_common_length(f"scores_out[{name!r}]", outside))
        for score, values in outside.items():
            for one in metrics("detection"):
                drawn_from[name, score, one.name] = _measured(one, inside[score], values, place)
    found = distributions({key: one for key, (_, one) in drawn_from.items()}, sizes, resamples, seed)
    drawn = {key: (value, found[key]) for key, (value, _) in drawn_from.items()}
    each = {name: _compared(drawn, name, level) for name in scores_out}
    return each, _compared(_means(drawn, list(scores_out)), MEAN, level)


def _common_length(what: str, scores: Mapping[str, Floats]) -> int:
    lengths = {name: len(one) for name, one in scores.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{what} must hold scores of the same inputs, at least one score; got lengths {lengths}")
    return next(iter(lengths.values()))


def _measured(one: Metric, inside: Floats, outside: Floats, place: int) -> tuple[float, Statistic]:
    """The value, and the statistic of the counts of all groups: the first are the test inputs, `place` is this set."""
    value, statistic = one.measured({"scores_in": inside, "scores_out": outside})
    assert not isinstance(statistic, BinGaps)
    return value, lambda *counts: statistic(counts[0], counts[place])


def _means(drawn: Drawn, sets: list[str]) -> Drawn:
    """Over sets, resample by resample, of every metric of the scores that all sets have."""
    found: Drawn = {}
    for score, metric in dict.fromkeys(key[1:] for key in drawn):
        parts = [drawn[name, score, metric] for name in sets if (name, score, metric) in drawn]
        if len(parts) == len(sets):
            value = sum(value for value, _ in parts) / len(parts)
            found[MEAN, score, metric] = value, np.mean([one for _, one in parts], axis=0)
    return found


def _compared(drawn: Drawn, name: str, level: float) -> Compared:
    detection: dict[str, dict[str, Interval]] = {}
    behind: dict[str, dict[str, Interval]] = {}
    for one in metrics("detection"):
        found = {score: each for (of, score, metric), each in drawn.items() if (of, metric) == (name, one.name)}
        for score, each in found.items():
            detection.setdefault(score, {})[one.name] = interval_of(*each, level)
        for score, gap in behind_best(found, one.better, level).items():
            behind.setdefault(score, {})[one.name] = gap
    return Compared(detection, behind)


def risk_areas(
    losses: ArrayLike,
    uncertainties: Mapping[str, ArrayLike],
    *,
    root: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """`risk_area` by each of several uncertainties on the same resamples, and how far each is behind the best.

    Args:
        losses: (N,), as for `risk_coverage`.
        uncertainties: {name: (N,)}.
        root: as for `risk_coverage`.
        resamples, level, seed: as for `bootstrap`.

    >>> areas, behind = risk_areas([1, 0, 0, 0] * 9, {"total": [4, 3, 2, 1] * 9, "other": [1, 2, 3, 4] * 9})
    >>> round(areas["total"].value, 3), list(behind), behind["other"].low > 0
    (0.038, ['other'], True)
    """
    whole("resamples", resamples)
    share("level", level)
    of = {name: (losses, vector(name, one, finite=False)) for name, one in uncertainties.items()}
    statistics = {name: RESAMPLED[risk_area].make(*pair, root=root) for name, pair in of.items()}
    plain = {name: one for name, one in statistics.items() if not isinstance(one, BinGaps)}
    drawn = distributions(plain, [len(vector("losses", losses))], resamples, seed)
    found = {name: (risk_area(*pair, root=root), drawn[name]) for name, pair in of.items()}
    return {name: interval_of(*each, level) for name, each in found.items()}, behind_best(found, "lower", level)


def behind_best(found: Mapping[str, tuple[float, Floats]], better: Any, level: float = 0.95) -> dict[str, Interval]:
    """How much worse each is than the best, with an interval over resamples; the best itself has none.

    Args:
        found: {name: (value on the data, values on the same resamples (R,))}.
        better: "higher", "lower", or the number that is best.
        level: share of the resamples inside the interval.

    >>> behind_best({"a": (0.9, np.array([0.9, 0.8])), "b": (0.7, np.array([0.8, 0.7]))}, "higher", 0.5)
    {'b': Interval(value=0.2..., low=0.1..., high=0.1..., left_out=0)}
    """
    if not found:
        return {}
    ranks = {name: (_rank(value, better), _rank(drawn, better)) for name, (value, drawn) in found.items()}
    best = min(ranks, key=lambda name: ranks[name][0])
    first, drawn = ranks.pop(best)
    return {name: interval_of(value - first, each - drawn, level) for name, (value, each) in ranks.items()}


def _rank(value: Any, better: Any) -> Any:
    """Smaller is better."""
    if isinstance(better, float):
        return abs(value - better)
    return -value if better == "higher" else value
