"""Answering only where sure: accuracy against the share of inputs that get an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from bnn.plots.axes import finite_rows, key, next_series, percent_ticks, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SelectiveCurve(Protocol):
    """Accuracy (N,) on the most certain shares (N,), as `bnn.metrics.accuracy_coverage` makes it."""

    @property
    def coverage(self) -> Any: ...

    @property
    def accuracy(self) -> Any: ...


def accuracy_coverage(ax: Axes, curve: SelectiveCurve, *, label: str | None = None, color: str | None = None) -> Axes:
    """Accuracy on the most certain inputs against how many these are; good uncertainty makes it fall to the right.

    Args:
        ax: the axes.
        curve: `.coverage`, `.accuracy`, (N,).
        label, color: of the series.
    """
    coverage, accuracy = finite_rows("an accuracy-coverage curve", coverage=curve.coverage, accuracy=curve.accuracy)
    share("coverage", coverage)
    share("accuracy", accuracy)
    look = next_series(ax, color)
    ax.plot(coverage, accuracy, label=label, markevery=0.2 if len(coverage) > 2 else 1, **look)
    ax.set_xlim(-0.03, 1.03)
    percent_ticks(ax.xaxis)
    percent_ticks(ax.yaxis)
    ax.set_xlabel("inputs answered, most certain first")
    ax.set_ylabel("accuracy on these")
    key(ax)
    return ax
