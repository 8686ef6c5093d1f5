"""Do probabilities and intervals hold what they promise? Reliability, coverage of intervals, means beside targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn._common.extras import need
from bnn.plots.style import bars, column, diagonal, few_numbers, finite_rows, key, next_series, share, unit_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AREA, LEAST = 200.0, 12.0  # points squared: of a marker with all inputs behind it, and of the smallest


class ReliabilityCurve(Protocol):
    """Bins (B,), as `bnn.calibration.calibration_curve` makes them."""

    @property
    def probability(self) -> Any: ...

    @property
    def frequency(self) -> Any: ...

    @property
    def weights(self) -> Any: ...


def reliability(ax: Axes, curve: ReliabilityCurve, *, label: str | None = None, color: str | None = None) -> Axes:
    """Observed frequency against predicted probability; on the diagonal, confidence is deserved.

    The area of a marker is the share of inputs behind it: `AREA` weight, and no less than `LEAST`.

    Args:
        ax: the axes.
        curve: `.probability`, `.frequency`, `.weights`, each (B,); bins with NaN or of weight 0 are skipped.
        label: of the series, in the key above.
        color: of the series; None takes the next of the palette.
    """
    p, f, w = finite_rows(
        "a reliability curve", probability=curve.probability, frequency=curve.frequency, weights=curve.weights
    )
    if not (w > 0).any():
        raise ValueError("nothing to draw: a reliability curve needs a bin of weight > 0; got none")
    share("probability", p)
    share("frequency", f)
    p, f, w = p[w > 0], f[w > 0], w[w > 0]
    look = next_series(ax, color)
    unit_square(ax)
    ax.plot(p, f, label=label, markevery=[], **look)  # its marker shows in the key; those of the bins follow
    area = np.maximum(AREA * w / max(1.0, w.sum()), LEAST)
    edge, face = look["color"], need("matplotlib.colors", "plots").to_rgba(look["color"], 0.5)
    look = {"marker": look["marker"], "linewidths": 1.0, "zorder": 3, "clip_on": False}  # whole at p = 1, too
    ax.scatter(p, f, s=area, facecolors=[face], edgecolors=edge, **look)
    ax.set_xlabel("predicted probability")
    ax.set_ylabel("observed frequency")
    key(ax)
    return ax


class Predictions(Protocol):
    """Targets, predictive means and standard deviations, (N,), in the target's own units."""

    @property
    def target(self) -> Any: ...

    @property
    def mean(self) -> Any: ...

    @property
    def sd(self) -> Any: ...


def interval_coverage(
    ax: Axes,
    levels: Any,
    coverage: Any,
    low: Any = None,
    high: Any = None,
    *,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """The share of targets in the predicted intervals, against the share promised; the diagonal keeps the promise.

    Args:
        ax: the axes.
        levels: (N,), as 0.5 and 0.9.
        coverage: (N,), observed; NaN is skipped.
        low, high: (N,), the ends of error bars, not their lengths.
        label, color: of the series.
    """
    x, y = finite_rows("a coverage curve", levels=levels, coverage=coverage)
    share("levels", x)
    share("coverage", y)
    look = next_series(ax, color)
    bars(ax, column("levels", levels), low, high, look["color"])
    unit_square(ax)
    ax.plot(x, y, label=label, **look)
    ax.set_xlabel("promised: level of the interval")
    ax.set_ylabel("observed: targets inside")
    key(ax)
    return ax


def predicted_against_true(
    ax: Axes, points: Predictions, *, label: str | None = None, color: str | None = None, name: str = "target"
) -> Axes:
    """Predictive means against targets, with bars of one standard deviation each way; on the diagonal they agree.

    Both axes have the same scale and the same ends.

    Args:
        ax: the axes.
        points: `.target`, `.mean`, `.sd`, (N,).
        label, color: of the series.
        name: what the target is called.
    """
    target, mean, sd = finite_rows("a set of predictions", target=points.target, mean=points.mean, sd=points.sd)
    if (sd < 0).any():
        raise ValueError(f"sd must be >= 0; {(sd < 0).sum()} are not, the first is {sd[sd < 0][0]:g}")
    look = next_series(ax, color) | {"linestyle": "none"}
    bars(ax, target, mean - sd, mean + sd, look["color"], linewidth=0.8, alpha=0.45)
    diagonal(ax, float(min(target.min(), mean.min())), float(max(target.max(), mean.max())))
    ax.plot(target, mean, label=label, markersize=4 if len(target) <= 100 else 3, **look)
    ax.set_xlabel(name.replace("$", r"\$"))
    ax.set_ylabel("prediction ± one sd")
    ends = np.asarray(ax.dataLim.get_points())
    margin = 0.04 * float(ends.max() - ends.min()) or 1.0
    limits = (float(ends.min()) - margin, float(ends.max()) + margin)
    ax.set(xlim=limits, ylim=limits)
    ax.set_aspect("equal", adjustable="box")
    for axis in (ax.xaxis, ax.yaxis):
        few_numbers(axis)
    key(ax)
    return ax
