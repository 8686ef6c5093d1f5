"""Real targets: do intervals hold what they promise, and how far are means from targets?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from bnn.plots.axes import bars, column, diagonal, finite_rows, key, next_series, share, unit_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ax: Axes, points: Predictions, *, label: str | None = None, color: str | None = None
) -> Axes:
    """Predictive means against targets, with bars of one standard deviation each way; on the diagonal they agree.

    Args:
        ax: the axes.
        points: `.target`, `.mean`, `.sd`, (N,).
        label, color: of the series.
    """
    target, mean, sd = finite_rows("a set of predictions", target=points.target, mean=points.mean, sd=points.sd)
    if (sd < 0).any():
        raise ValueError(f"sd must be >= 0; {(sd < 0).sum()} are not, the first is {sd[sd < 0][0]:g}")
    look = next_series(ax, color) | {"linestyle": "none"}
    bars(ax, target, mean - sd, mean + sd, look["color"], linewidth=0.8, alpha=0.45)
    diagonal(ax, float(min(target.min(), mean.min())), float(max(target.max(), mean.max())))
    ax.plot(target, mean, label=label, markersize=4 if len(target) <= 100 else 3, **look)
    ax.set_xlabel("target")
    ax.set_ylabel("prediction ± one sd")
    key(ax)
    return ax
