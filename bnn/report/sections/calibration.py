"""Do probabilities mean what they say? Reliability diagrams, or the coverage of intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.evaluation import Evaluation
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.report.sections.picture import Drawn, Picture, slug

SECTION = "calibration"
LEVELS = (0.5, 0.8, 0.9, 0.95)  # that words name
PREFIX = "coverage_"  # of the metrics that hold the coverage of intervals

RELIABILITY = (
    "Among inputs given about the same probability (across), the share that is right (up) should lie on the "
    "diagonal: below it the network is overconfident, above it underconfident; small dots hold few inputs and scatter "
    "by chance."
)
COVERAGE = (
    "Of the targets, the share inside their interval (up) should be what the interval promises (across): below the "
    "diagonal intervals are too narrow, above it too wide; bars are 95 % intervals over test inputs."
)
POINTS = (
    "Each dot is a test input, its prediction (up) against the truth (across) with a bar of one predicted standard "
    "deviation: dots far from the diagonal should have long bars."
)


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """One reliability diagram per run; for real targets coverage, all runs in one, and predictions run by run."""
    for run in runs:
        if run.evaluation.reliability is not None and any(run.evaluation.reliability.weights):
            yield _reliability(run)
    covered = [run for run in runs if _levels(run)]
    if covered:
        yield _coverage(covered)
    for run in runs:
        points = run.evaluation.points
        if points is not None and any(map(math.isfinite, points.mean)):
            yield _points(run)


def _reliability(run: Drawn) -> Picture:
    curve = run.evaluation.reliability
    assert curve is not None

    def draw(axes: Any) -> None:
        plots.reliability(axes, curve, color=run.color)

    ece = run.evaluation.metrics.get("ece")
    facts = "" if ece is None else f"expected calibration error {written.percent(ece.value)}"
    key, title = f"reliability-{slug(run.name)}", f"Reliability of {run.name}"
    return Picture(SECTION, key, title, RELIABILITY, facts, draw, panel="Reliability", short=run.name)


def _levels(run: Drawn) -> dict[float, Interval]:
    """Coverage by the level of the interval; of older files from the metrics coverage_50, coverage_90, ...."""
    if run.evaluation.coverage:
        return {one.level: one.covered for one in run.evaluation.coverage if one.inputs}
    found = run.evaluation.metrics.items()
    levels = {float(key.removeprefix(PREFIX)) / 100: one for key, one in found if key.startswith(PREFIX)}
    return dict(sorted(levels.items()))


def _coverage(runs: Sequence[Drawn]) -> Picture:
    def draw(axes: Any) -> None:
        for run in runs:
            levels = _levels(run)
            parts = [[getattr(one, part) for one in levels.values()] for part in ("value", "low", "high")]
            plots.interval_coverage(axes, list(levels), *parts, label=run.label, color=run.color)

    facts = "; ".join(
        f"{run.name}: " + ", ".join(f"{written.percent(k, 0)} covers {written.percent(v.value)}" for k, v in each)
        for run in runs
        if (each := [(k, v) for k, v in _levels(run).items() if k in LEVELS])
    )
    return Picture(SECTION, "interval-coverage", "Coverage of intervals", COVERAGE, facts, draw, overlaid=True)


def _points(run: Drawn) -> Picture:
    points = run.evaluation.points
    assert points is not None

    def draw(axes: Any) -> None:
        plots.predicted_against_true(axes, points, color=run.color, name=_first(run.evaluation))

    several = bool(run.evaluation.by_target)
    facts = f"{len(points.mean)} test inputs" + (f", {_first(run.evaluation)}" if several else "")
    key, title, panel = f"predicted-{slug(run.name)}", f"Predictions of {run.name}", "Predictions against the truth"
    return Picture(SECTION, key, title, POINTS, facts, draw, panel=panel, short=run.name)


def _first(found: Evaluation) -> str:
    """The target that points are of: of several the first."""
    return next(iter(found.by_target), found.target or "target")
