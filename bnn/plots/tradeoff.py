"""A price against a quality: one point per network, its name beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bnn._common.extras import need
from bnn.plots.axes import next_series, percent_ticks
from bnn.plots.labels import write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ends = tuple[float, float]


def tradeoff(
    ax: Axes,
    x: float,
    y: float,
    *,
    xerr: Ends | None = None,
    yerr: Ends | None = None,
    label: str | None = None,
    color: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
    log_x: bool = False,
    marker: str | None = None,
    percent: bool = False,
) -> Axes:
    """One point, as size or time against a metric; call it once for each network.

    Args:
        ax: the axes.
        x, y: the point.
        xerr, yerr: (low, high), the ends of its error bars, not their lengths.
        label: written beside the point; all labels move so that they stay apart and within the axes.
        color, marker: of the point; None takes the next of the palette.
        xlabel, ylabel: what x and y are.
        log_x: a logarithmic axis; x must be positive.
        percent: y is a share.
    """
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"nothing to draw: x and y must be finite; got x = {x}, y = {y}")
    if log_x and x <= 0:
        raise ValueError(f"x must be > 0 on a logarithmic axis; got {x}: use log_x=False")
    look = next_series(ax, color) | {"linestyle": "none", "markersize": 8, "zorder": 3}
    ax.plot([x], [y], **(look | ({} if marker is None else {"marker": marker})))
    if yerr is not None and all(map(math.isfinite, yerr)):
        ax.vlines(x, *yerr, colors=look["color"], linewidth=1.1)
    if xerr is not None and all(map(math.isfinite, xerr)):
        ax.hlines(y, *xerr, colors=look["color"], linewidth=1.1)
    ax.margins(0.2, 0.15)
    if log_x:
        ax.set_xscale("log")
    ax.autoscale_view()  # now: ticks and names depend on the limits
    _ticks(ax)
    if percent:
        percent_ticks(ax.yaxis)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    write_beside(ax, x, y, label)
    return ax


def short(value: float) -> str:
    """A number in few letters.

    >>> short(12_500), short(2e6), short(0.05), short(850)
    ('12.5k', '2M', '0.05', '850')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _ticks(ax: Axes) -> None:
    """Few ticks of x, in short numbers: 1, 2, 5 of each power of ten, or powers alone where there are many."""
    ticker = need("matplotlib.ticker", "plots")
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value)))
    if ax.get_xscale() != "log":
        ax.xaxis.set_major_locator(ticker.MaxNLocator(5))
        return
    low, high = ax.get_xlim()
    decades = math.log10(high / low)
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    if decades < 0.7:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
    else:
        subs = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=8))
