"""What is gained by leaving the least sure inputs to somebody else: accuracy against coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.report import numbers
from bnn.report.sections.picture import Drawn, Picture

SECTION = "selective"
HOW = (
    "When only the most certain share of the inputs is answered (across), the accuracy on these (up) should rise "
    "towards the left: the higher the curve, the better the network knows what it does not know."
)
HALF = 0.5


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """All runs in one picture."""
    seen = [run for run in runs if run.evaluation.selective is not None]
    if not seen:
        return

    def draw(axes: Any) -> None:
        for run in seen:
            assert run.evaluation.selective is not None
            plots.accuracy_coverage(axes, run.evaluation.selective, label=run.label, color=run.color)

    facts = ", ".join(f"{run.name}: {numbers.percent(_at_half(run))} on the most certain half" for run in seen)
    yield Picture(SECTION, "accuracy-coverage", "Accuracy against coverage", HOW, facts, draw, overlaid=True)


def _at_half(run: Drawn) -> float:
    curve = run.evaluation.selective
    assert curve is not None
    return min(zip(curve.coverage, curve.accuracy, strict=True), key=lambda point: abs(point[0] - HALF))[1]
