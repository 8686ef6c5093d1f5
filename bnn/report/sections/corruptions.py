"""What happens as images get worse: means over kinds of corruption, severity by severity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bnn import plots
from bnn.evaluation import Evaluation
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.report.sections.picture import Drawn, Picture

SECTION = "corruptions"
ENOUGH = 10  # kinds for an interval of their mean; fewer say too little about how kinds differ
T = (2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101)  # 97.5 % of Student's t, 9 to 18 degrees


class Mean(NamedTuple):
    """A metric at one severity: its mean over kinds and the interval of that mean."""

    severity: int
    value: float
    low: float
    high: float
    kinds: int


def means(evaluation: Evaluation, metric: str) -> list[Mean]:
    """Severity 0 is the test inputs as they are.

        m +- t s / sqrt(n)    over n >= 10 kinds: how far the mean would move with other kinds like these

    Fewer kinds have the means of their own limits instead: how far it would move with other test inputs, at most.
    """
    rows: dict[int, list[Interval]] = {}
    for row in evaluation.corruptions:
        if metric in row.metrics and math.isfinite(row.metrics[metric].value):
            rows.setdefault(row.severity, []).append(row.metrics[metric])
    clean = evaluation.metrics.get(metric)
    known = rows and clean is not None and math.isfinite(clean.value)
    start = [Mean(0, clean.value, clean.low, clean.high, 1)] if known and clean is not None else []
    return start + [
        _mean(severity, rows[severity], written.is_share(evaluation.task, metric)) for severity in sorted(rows)
    ]


def _mean(severity: int, found: Sequence[Interval], share: bool) -> Mean:
    n, values = len(found), [one.value for one in found]
    value = fmean(values)
    if n < ENOUGH:
        return Mean(severity, value, fmean(one.low for one in found), fmean(one.high for one in found), n)
    half = T[min(n - ENOUGH, len(T) - 1)] * stdev(values) / math.sqrt(n)
    low, high = value - half, value + half
    return Mean(severity, value, max(low, 0.0) if share else low, min(high, 1.0) if share else high, n)


def shared(evaluation: Evaluation, metrics: Iterable[str]) -> list[str]:
    """The metrics that have one value: of several real targets not those in their units."""
    several = bool(evaluation.by_target)
    return [name for name in metrics if not (several and written.in_own_units(evaluation.task, name))]


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """One picture per metric, all runs in it."""
    seen = [run for run in runs if run.evaluation.corruptions]
    metrics = dict.fromkeys(
        name for run in seen for row in run.evaluation.corruptions for name in shared(run.evaluation, row.metrics)
    )
    for metric in metrics:
        curves = [(run, curve) for run in seen if (curve := means(run.evaluation, metric))]
        if curves:
            yield _picture(metric, curves)


def _picture(metric: str, curves: Sequence[tuple[Drawn, list[Mean]]]) -> Picture:
    task = curves[0][0].evaluation.task
    called = written.metric_title(task, metric)
    called = called[:1].upper() + called[1:]

    def draw(axes: Any) -> None:
        for run, curve in curves:
            severity, value, low, high, _ = zip(*curve, strict=True)
            style: dict[str, Any] = {"ylabel": called, "label": run.label, "color": run.color}
            style["percent"] = written.is_share(task, metric)
            plots.corruption_curve(axes, severity, value, low, high, **style)

    ends = ((run.name, curve[-1]) for run, curve in curves)
    facts = ", ".join(
        f"{name}: {written.metric_text(task, metric, end.value)} at severity {end.severity}" for name, end in ends
    )
    title = f"{called} under corruption"
    counts = {one.kinds for _, curve in curves for one in curve if one.severity > 0}
    met = [{(row.kind, row.severity) for row in run.evaluation.corruptions} for run, _ in curves]
    sentence = how(counts, shared=len(met) > 1 and all(one == met[0] for one in met))
    return Picture(SECTION, f"corruption-{metric}", title, sentence, facts, draw, overlaid=True)


def how(counts: set[int], shared: bool) -> str:
    """The sentence says what the bars are, for that depends on how many kinds there are.

    Args:
        counts: how many kinds a point stands for.
        shared: whether several runs met the same corruptions.
    """
    number = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    kinds = "one kind of corruption" if counts == {1} else f"{number} kinds of corruption"
    start = f"Each point is the mean over {kinds} (0: none), "
    if min(counts) >= ENOUGH:
        bars = "its bar the 95 % interval of that mean if these kinds stand for others like them"
    else:
        bars = "its bar the 95 % interval over test inputs"
    end = "; all runs meet the same images, so curves can differ for certain although bars overlap" if shared else ""
    return f"{start}{bars}{end}."
