"""Corrupted inputs: how a metric changes with severity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn._common.extras import need
from bnn.plots.axes import bars, column, drawn, finite_rows, key, next_series, percent_ticks, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    if percent:
        percent_ticks(ax.yaxis)
    ax.set_xlabel("severity")
    ax.set_ylabel(ylabel)
    key(ax)
    return ax


def _aside(ax: Axes, i: int) -> Any:
    """The coordinates of the data, series i moved a few points sideways: bars of several do not hide each other."""
    points = 2.0 * ((i + 1) // 2) * (1 if i % 2 else -1)  # 0, 2, -2, 4, -4, ...
    move = need("matplotlib.transforms", "plots").ScaledTranslation
    return ax.transData + move(points / 72, 0, ax.figure.dpi_scale_trans)
