"""A price against a quality: one point per network, its name beside it, clear of all others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnn._common.extras import need
from bnn.metrics.checks import Floats
from bnn.plots.style import GUIDE, next_series, percent_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ends = tuple[float, float]
NAME = "_beside"  # how the names are found again
CLEAR = 6.0  # points between the middle of a marker and its name
ROUNDS = 4  # over all names
MISLEADING = 10.0  # what a point of distance costs by which a name is nearer to another than to its own

# (dx, dy) in multiples of CLEAR, the best first: right, left, above, below, corners, then the same further away, and at
# last beyond the ends of long error bars
_SIDES = [(1.2, 0.0), (-1.2, 0.0), (0.0, 1.2), (0.0, -1.2), (0.8, 0.8), (0.8, -0.8), (-0.8, 0.8), (-0.8, -0.8)]
PLACES = [(far * dx, far * dy) for far in (1.0, 2.2, 3.4) for dx, dy in _SIDES]
PLACES += [(0.0, sign * far) for far in (5.0, 6.5, 8.0) for sign in (1, -1)]


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


def write_beside(ax: Axes, x: float, y: float, label: str | None) -> None:
    """Writes `label` beside the point (x, y), and finds a new place for every name that is there already."""
    if label:
        ax.annotate(label, (x, y), xytext=(0, 0), textcoords="offset points", label=NAME, annotation_clip=False)
    settle(ax)


def settle(ax: Axes) -> None:
    """Finds a place for every name; again after the layout of the figure has moved the axes."""
    names: list[Any] = [text for text in ax.texts if text.get_label() == NAME]
    if not names:
        return
    scale = ax.figure.dpi / 72  # pixels in a point
    boxes = np.stack([_boxes(ax, name, scale) for name in names])  # (n, places, 4)
    owners = np.stack([ax.transData.transform(name.xy) / scale for name in names])  # (n, 2)
    inside = np.asarray(ax.bbox.extents) / scale
    for name, place in zip(names, _apart(boxes, owners, _things(ax, scale), inside), strict=True):
        dx, dy = PLACES[place]
        name.set_position((CLEAR * dx, CLEAR * dy))
        name.set_horizontalalignment("left" if dx > 0 else "right" if dx < 0 else "center")
        name.set_verticalalignment("bottom" if dy > 0 else "top" if dy < 0 else "center")


def _boxes(ax: Axes, name: Any, scale: float) -> Floats:
    """Left, bottom, right and top of a name at each of its places, in points, with some air: (places, 4)."""
    extent = name.get_window_extent()
    size = np.array([extent.width, extent.height]) / scale + 2
    shift = np.array(PLACES)  # (places, 2)
    part = np.where(shift > 0, 0.0, np.where(shift < 0, 1.0, 0.5))  # of the box that is left of, or below, its anchor
    corner = ax.transData.transform(name.xy) / scale + CLEAR * shift - part * size
    return np.concatenate([corner, corner + size], axis=1)


def _things(ax: Axes, scale: float) -> Floats:
    """Boxes of what no name should cover, in points: markers and error bars, (things, 4)."""
    bars = need("matplotlib.collections", "plots").LineCollection
    points = [line.get_xydata() for line in ax.lines if line.get_label() != GUIDE]
    ends = [
        segment
        for collection in ax.collections
        if isinstance(collection, bars)
        for segment in collection.get_segments()
    ]
    corners = [ax.transData.transform(np.asarray(xy, dtype=float)) / scale for xy in [*points, *ends]]
    return np.array([[*(c.min(axis=0) - CLEAR / 2), *(c.max(axis=0) + CLEAR / 2)] for c in corners])


def _misleading(boxes: Floats, owners: Floats) -> Floats:
    """How much nearer a name at each of its places is to another point than to its own, in points: (n, places)."""
    gap = np.maximum(boxes[:, :, None, :2] - owners, owners - boxes[:, :, None, 2:]).clip(0)  # (n, places, n, 2)
    away = np.hypot(gap[..., 0], gap[..., 1])
    own = away[np.arange(len(boxes)), :, np.arange(len(boxes))]  # (n, places)
    return np.asarray((own[..., None] - away).max(axis=2))


def _apart(boxes: Floats, owners: Floats, things: Floats, inside: Floats) -> NDArray[np.intp]:
    """A place for each of n names, (n,): the least area over things, over other names and outside, and near its point.

    Each name in turn takes the best place given the others; the best of several starts counts.
    """
    n, places = boxes.shape[:2]
    out = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]) - _overlap(boxes, inside)
    alone = 3 * out + 2 * _overlap(boxes[:, :, None], things).sum(axis=2) + 0.3 * np.arange(places)  # (n, places)
    alone += MISLEADING * _misleading(boxes, owners)
    pairs = 3 * _overlap(boxes[:, :, None, None], boxes)  # (n, places, n, places)
    pairs[np.arange(n), :, np.arange(n), :] = 0
    every = np.arange(n)
    best, least = np.zeros(n, np.intp), np.inf
    for start in range(len(_SIDES)):
        chosen = np.full(n, start)
        for i in [*every] * ROUNDS:
            chosen[i] = np.argmin(alone[i] + pairs[i][:, every, chosen].sum(axis=1))
        total = alone[every, chosen].sum() + pairs[every, chosen][:, every, chosen].sum() / 2
        if total < least:
            best, least = chosen, total
    return best


def _overlap(one: Floats, other: Floats) -> Floats:
    """The area that boxes (..., 4) share."""
    low, high = np.maximum(one[..., :2], other[..., :2]), np.minimum(one[..., 2:], other[..., 2:])
    return np.asarray(np.clip(high - low, 0, None).prod(axis=-1))
