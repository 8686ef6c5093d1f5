"""Training: a loss or a metric, epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bnn.plots.axes import drawn, finite_rows, key, next_series, percent_ticks, whole_numbers
from bnn.plots.style import SURFACE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 7  # on a curve, about: enough to tell it from others


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
    if percent:
        percent_ticks(ax.yaxis)
    ax.set_xlabel("epoch")
    ax.set_ylabel(ylabel)
    key(ax)
    return ax
