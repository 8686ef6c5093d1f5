"""What is gained by leaving the least sure inputs to somebody else: accuracy against coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.metrics import written
from bnn.report.sections.picture import Drawn, Picture, slug

SECTION = "selective"
HOW = (
    "When only the most certain share of the inputs is answered (across), the accuracy on these (up) should rise "
    "towards the left: the higher the curve, the better the network knows what it does not know."
)
RISK = (
    "What is left of the error (up) when only inputs of the least total, or the least epistemic, uncertainty are "
    "answered (across): abstain by the one whose curve is lower. Epistemic uncertainty is there where draws disagree."
)
HALF = 0.5


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """Accuracy of all runs in one picture; then, run by run, the risk by total and by epistemic uncertainty."""
    yield from _accuracy(runs)
    yield from _risks([run for run in runs if run.evaluation.risk_coverage])


def _accuracy(runs: Sequence[Drawn]) -> Iterator[Picture]:
    seen = [run for run in runs if run.evaluation.selective is not None]
    if not seen:
        return

    def draw(axes: Any) -> None:
        for run in seen:
            assert run.evaluation.selective is not None
            plots.accuracy_coverage(axes, run.evaluation.selective, label=run.label, color=run.color)

    facts = ", ".join(f"{run.name}: {written.percent(_at_half(run))} on the most certain half" for run in seen)
    yield Picture(SECTION, "accuracy-coverage", "Accuracy against coverage", HOW, facts, draw, overlaid=True)


def _at_half(run: Drawn) -> float:
    curve = run.evaluation.selective
    assert curve is not None
    return min(zip(curve.coverage, curve.accuracy, strict=True), key=lambda point: abs(point[0] - HALF))[1]


def _risks(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """One for each run, all on the same scale."""
    top = max((max(one.risk) for run in runs for one in run.evaluation.risk_coverage.values()), default=0.0)
    for run in runs:
        yield _risk(run, top)


def _risk(run: Drawn, top: float) -> Picture:
    real = run.evaluation.task == "regression"
    found = run.evaluation.risk_coverage

    def draw(axes: Any) -> None:
        for color, (kind, curve) in zip(plots.PALETTE, found.items(), strict=False):
            ylabel = (
                f"RMSE on these{' (sds of targets)' if curve.unit == 'sd' else ''}" if real else "error rate on these"
            )
            plots.risk_coverage(axes, curve, ylabel=ylabel, percent=not real, label=f"by {kind}", color=color)
        axes.set_ylim(0, 1.05 * top or 1.0)

    text = written.figures if real else written.percent
    facts = ", ".join(f"by {kind}: {text(one.area.value)} on average over all shares" for kind, one in found.items())
    panel = f"{'RMSE' if real else 'Error rate'} against coverage"
    key, title = f"risk-coverage-{slug(run.name)}", f"{run.name}: {panel}"
    return Picture(SECTION, key, title, RISK, facts, draw, panel=panel, short=run.name)
