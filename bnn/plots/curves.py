"""Curves of a metric: against the share of inputs that get an answer, the severity of corruptions, and epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn._common.extras import need
from bnn.plots.style import (
    SURFACE,
    bars,
    column,
    drawn,
    finite_rows,
    key,
    next_series,
    percent_ticks,
    share,
    short_numbers,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 7  # on a curve, about: enough to tell it from others


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


class RiskCurve(Protocol):
    """Risk (N,) on the most certain shares (N,), as `bnn.metrics.risk_coverage` makes it."""

    @property
    def coverage(self) -> Any: ...

    @property
    def risk(self) -> Any: ...


def risk_coverage(
    ax: Axes,
    curve: RiskCurve,
    *,
    ylabel: str = "risk on these",
    percent: bool = False,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Risk on the most certain inputs against how many these are; good uncertainty makes it rise to the right.

    Args:
        ax: the axes.
        curve: `.coverage`, `.risk`, (N,).
        ylabel: what the risk is.
        percent: whether it is a share.
        label, color: of the series.
    """
    coverage, risk = finite_rows("a risk-coverage curve", coverage=curve.coverage, risk=curve.risk)
    share("coverage", coverage)
    if percent:
        share("risk", risk)
    (percent_ticks if percent else short_numbers)(ax.yaxis)
    look = next_series(ax, color)
    ax.plot(coverage, risk, label=label, markevery=0.2 if len(coverage) > 2 else 1, **look)
    ax.set_xlim(-0.03, 1.03)
    percent_ticks(ax.xaxis)
    ax.set_xlabel("inputs answered, most certain first")
    ax.set_ylabel(ylabel)
    key(ax)
    return ax


def corruption_curve(
    ax: Axes,
    severities: Any,
    mean: Any,
    low: Any = None,
    high: Any = None,
    *,
    ylabel: str = "",
    label: str | None = None,
    color: str | None = None,
    percent: bool = False,
) -> Axes:
    """A metric against the severity of a corruption, with error bars.

    Args:
        ax: the axes.
        severities: (N,), 0 for clean inputs.
        mean: (N,), the metric; NaN is skipped.
        low, high: (N,), the ends of the error bars, not their lengths.
        ylabel: what the metric is.
        label, color: of the series.
        percent: the metric is a share.
    """
    x, y = finite_rows("a corruption curve", severities=severities, mean=mean)
    step = drawn(ax)
    look = next_series(ax, color)
    beside = _aside(ax, step)
    bars(ax, column("severities", severities), low, high, look["color"], transform=beside)
    ax.plot(x, y, label=label, transform=beside, **look)
    ax.update_datalim(np.column_stack([x, y]))  # the sideways move hides the data from the axes
    ax.autoscale_view()
    whole_numbers(ax.xaxis)
    (percent_ticks if percent else short_numbers)(ax.yaxis)
    ax.set_xlabel("severity")
    ax.set_ylabel(ylabel)
    key(ax)
    return ax


def _aside(ax: Axes, i: int) -> Any:
    """The coordinates of the data, series i moved a few points sideways: bars of several do not hide each other."""
    points = 2.0 * ((i + 1) // 2) * (1 if i % 2 else -1)  # 0, 2, -2, 4, -4, ...
    move = need("matplotlib.transforms", "plots").ScaledTranslation
    return ax.transData + move(points / 72, 0, ax.figure.dpi_scale_trans)


def training_curve(
    ax: Axes,
    epochs: Any,
    values: Any,
    *,
    ylabel: str = "",
    label: str | None = None,
    color: str | None = None,
    dashed: bool = False,
    percent: bool = False,
) -> Axes:
    """A value against the epoch.

    Args:
        ax: the axes.
        epochs: (N,).
        values: (N,); None and NaN are skipped.
        ylabel: what the value is.
        label, color: of the series.
        dashed: with hollow markers, for the other one of a pair, as training next to validation.
        percent: the value is a share.
    """
    x, y = finite_rows("a training curve", epochs=epochs, values=values)
    look: dict[str, Any] = next_series(ax, color) | {"linestyle": (0, (4, 1.8)) if dashed else "-"}
    if dashed:
        look |= {"markerfacecolor": SURFACE, "markeredgecolor": look["color"], "markeredgewidth": 1.0}
    every = max(1, len(x) // MARKS)
    ax.plot(x, y, label=label, markevery=(drawn(ax) % every if len(x) > every else 0, every), **look)
    whole_numbers(ax.xaxis)
    (percent_ticks if percent else short_numbers)(ax.yaxis)
    ax.set_xlabel("epoch")
    ax.set_ylabel(ylabel)
    key(ax)
    return ax
