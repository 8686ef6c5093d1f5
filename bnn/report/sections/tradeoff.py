"""What quality costs: size and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.evaluation import Evaluation
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.report.sections.picture import Drawn, Picture

SECTION = "tradeoff"
FAR_APART = 20  # times; from here on a logarithmic axis
HOW = "Down and to the left is better, {}; bars are 95 % intervals of the NLL over test inputs."


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """NLL against parameters and against time, for two runs or more."""
    measured = [run for run in runs if _finite(run.evaluation.metrics.get("nll"))]
    if len(measured) > 1:
        how = HOW.format("a likely truth from few parameters")
        yield _picture("size", "Size against NLL", "parameters", how, measured, lambda one: float(one.size.parameters))
    timed = [run for run in measured if run.evaluation.time is not None]
    if len(timed) > 1:
        how = HOW.format("a likely truth in little time")
        yield _picture("time", "Time against NLL", "milliseconds per 1000 inputs", how, timed, _milliseconds)


def _finite(found: Interval | None) -> bool:
    return found is not None and math.isfinite(found.value)


def _milliseconds(found: Evaluation) -> float:
    assert found.time is not None
    return 1e6 * found.time.seconds / found.time.inputs


def _picture(
    key: str, title: str, xlabel: str, how: str, runs: Sequence[Drawn], cost: Callable[[Evaluation], float]
) -> Picture:
    costs = [cost(run.evaluation) for run in runs]
    log_x = max(costs) > FAR_APART * min(costs)

    def draw(axes: Any) -> None:
        for run, x in zip(runs, costs, strict=True):
            nll = run.evaluation.metrics["nll"]
            style: dict[str, Any] = {
                "label": run.label,
                "color": run.color,
                "xlabel": xlabel,
                "ylabel": "NLL",
                "log_x": log_x,
            }
            plots.tradeoff(axes, x, nll.value, yerr=(nll.low, nll.high), **style)

    nlls = (run.evaluation.metrics["nll"].value for run in runs)
    lines = (
        f"{run.name}: {written.figures(x)} {xlabel}, NLL {nll:.3f}"
        for run, x, nll in zip(runs, costs, nlls, strict=True)
    )
    return Picture(SECTION, f"tradeoff-{key}", title, how, "; ".join(lines), draw)
