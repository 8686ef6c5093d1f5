"""The look of every plot: its colours, how series differ, matplotlib's settings, and what plots share on their axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnn._common.extras import need
from bnn.metrics.checks import Floats, same_shape, to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Contrast of at least 3 both on white and on near-black; apart without red or green cones too, the first four the most.
PALETTE = ("#3794f6", "#d47e41", "#16725b", "#c63f91", "#926c0e", "#7a48d9", "#989285", "#2c85b5")
INK = "#23272e"  # text and axes
FAINT = "#b7bec8"  # guides and grid
SURFACE = "#ffffff"  # behind the plot, and the edge between overlapping markers

MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p")
LINESTYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
GUIDE = "_guide"  # the label of a guide; the underscore keeps it out of the key


def series(i: int) -> dict[str, Any]:
    """Colour, marker and line style of series i; they repeat after as many as `PALETTE` has.

    >>> series(0), series(8) == series(0)
    ({'color': '#3794f6', 'marker': 'o', 'linestyle': '-'}, True)
    """
    return {
        "color": PALETTE[i % len(PALETTE)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": LINESTYLES[i % len(LINESTYLES)],
    }


@contextmanager
def theme() -> Iterator[None]:
    """The house look for figures made, drawn and saved inside: sizes fit about 4.2 x 3.2 inches.

    Text stays text in SVG, and what is saved twice is the same twice.

    >>> import matplotlib
    >>> with theme():
    ...     matplotlib.rcParams["svg.fonttype"]
    'none'
    """
    matplotlib = need("matplotlib", "plots")
    cycler = need("cycler", "plots").cycler
    with matplotlib.rc_context({**_colors(), **_SIZES, **_FILES, "axes.prop_cycle": cycler(color=PALETTE)}):
        yield


def _colors() -> dict[str, str]:
    ink = "text.color axes.labelcolor axes.titlecolor axes.edgecolor xtick.color ytick.color"
    ink += " xtick.labelcolor ytick.labelcolor legend.labelcolor patch.edgecolor"
    return (
        dict.fromkeys(ink.split(), INK)
        | dict.fromkeys(["grid.color", "legend.edgecolor"], FAINT)
        | dict.fromkeys(["figure.facecolor", "figure.edgecolor", "lines.markeredgecolor"], SURFACE)
        | {"axes.facecolor": "none", "savefig.facecolor": "auto", "savefig.edgecolor": "auto"}
    )


_SIZES: dict[str, Any] = {
    "figure.figsize": (4.2, 3.2),
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "lines.markeredgewidth": 0.6,
    "hatch.linewidth": 0.8,
}
_FILES: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bnn",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib; a page may put its own in its place
}


def drawn(ax: Axes) -> int:
    """How many series are on the axes; each plot draws one line for its own."""
    return sum(line.get_label() != GUIDE for line in ax.lines)


def next_series(ax: Axes, color: str | None) -> dict[str, Any]:
    """Colour, marker and line style of the next series: those of `color` if it is of the palette."""
    own = PALETTE.index(color) if color in PALETTE else drawn(ax)
    return series(own) | ({} if color is None else {"color": color})


def diagonal(ax: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """The line y = x from `low` to `high`, once: further calls only make it longer."""
    for line in ax.lines:
        if line.get_label() == GUIDE:
            ends = [*np.asarray(line.get_xdata(), dtype=float), low, high]
            line.set_data([min(ends), max(ends)], [min(ends), max(ends)])
            return
    ax.plot([low, high], [low, high], color=FAINT, linestyle=(0, (4, 3)), linewidth=1.0, label=GUIDE, zorder=1.5)


def unit_square(ax: Axes) -> None:
    """Two shares against each other: percent from 0 to 100 both ways, and the diagonal."""
    for axis, limits in ((ax.xaxis, ax.set_xlim), (ax.yaxis, ax.set_ylim)):
        percent_ticks(axis)
        limits(-0.04, 1.04)
    diagonal(ax)


def percent_ticks(axis: Axis) -> None:
    """Ticks of a share as percentages, with as many digits as they need."""
    text = need("matplotlib.ticker", "plots").FuncFormatter(lambda value, _: f"{round(100 * value, 6) + 0.0:g}%")
    axis.set_major_formatter(text)


def short_numbers(axis: Axis) -> None:
    """Ticks where they are, as real numbers in a few letters: 200k for 200,000."""
    text = need("matplotlib.ticker", "plots").FuncFormatter(lambda value, _: short(value))
    axis.set_major_formatter(text)


def few_numbers(axis: Axis) -> None:
    """A few ticks of real numbers, short enough to stand side by side: 200k for 200,000.

    >>> [short(value) for value in (0.0, 0.25, 1500.0, 200000.0, -2500000.0)]
    ['0', '0.25', '1500', '200k', '-2.5M']
    """
    axis.set_major_locator(need("matplotlib.ticker", "plots").MaxNLocator(nbins=4, min_n_ticks=3))
    short_numbers(axis)


def short(value: float) -> str:
    """A number in a few letters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{round(value / (1e3 if unit == 'k' else size), 6):g}{unit}"
    return f"{round(value, 12) + 0.0:g}"


def whole_numbers(axis: Axis) -> None:
    """Ticks at integers only."""
    locator = need("matplotlib.ticker", "plots").MaxNLocator
    axis.set_major_locator(locator(nbins=8, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def bars(ax: Axes, at: Floats, low: Any, high: Any, color: str, **how: Any) -> None:
    """Upright lines from `low` to `high`, as they are: a bootstrap interval need not hold its value. NaN has none."""
    if (low is None) != (high is None):
        raise ValueError("low and high are the two ends of the same bars; got only one of them")
    if low is None:
        return
    lower, upper = column("low", low), column("high", high)
    same_shape(x=at, low=lower, high=upper)
    kept = np.isfinite(at) & np.isfinite(lower) & np.isfinite(upper)
    if kept.any():
        look: dict[str, Any] = {"linewidth": 1.1, "zorder": 1.9} | how
        ax.vlines(at[kept], lower[kept], upper[kept], colors=color, **look)
        for end in (lower, upper):
            ax.update_datalim(np.column_stack([at[kept], end[kept]]))


def key(ax: Axes, inside: Literal["lower right"] | None = None) -> None:
    """The labels of all series above the axes, never over the data, in as many columns as fit.

    Args:
        ax: the axes.
        inside: a corner that data leave free, to put it there instead.
    """
    handles, labels = ax.get_legend_handles_labels()
    if not labels:
        return
    if inside is not None:
        ax.legend(handles, labels, loc=inside, **_CLOSE)
        return
    for columns in range(min(4, len(labels)), 0, -1):
        even = math.ceil(len(labels) / math.ceil(len(labels) / columns))  # 4 in 2 + 2, not 3 + 1
        legend = ax.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=even, **_CLOSE)
        room = legend.get_window_extent().width / ax.bbox.width
        if room <= 1:
            return
        if room <= 1.2:  # there is some more on the left, above the ticks
            ax.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=even, **_CLOSE)
            return


_CLOSE: dict[str, Any] = {
    "frameon": False,
    "borderaxespad": 0.1,
    "borderpad": 0.2,
    "handlelength": 2.6,
    "handletextpad": 0.5,
    "columnspacing": 1.2,
    "labelspacing": 0.3,
}


def column(name: str, values: Any) -> Floats:
    """Real numbers (N,) as float64; None and NaN both mean that there is none."""
    array = np.asarray(to_numpy(values), dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (N,); got {array.shape}")
    return array


def finite_rows(what: str, **columns: Any) -> list[Floats]:
    """The columns (N,) without the rows in which one of them is not finite.

    >>> finite_rows("a curve", x=[1, 2, 3], y=[0.5, None, float("nan")])
    [array([1.]), array([0.5])]
    >>> finite_rows("a curve", x=[1], y=[float("nan")])
    Traceback (most recent call last):
    ValueError: nothing to draw: a curve needs at least one row of finite x and y; got 1 row, none of them finite
    """
    arrays = {name: column(name, values) for name, values in columns.items()}
    same_shape(**arrays)
    table = np.stack(list(arrays.values()))  # (columns, N)
    kept = table[:, np.isfinite(table).all(axis=0)]
    if kept.shape[1] == 0:
        rows = table.shape[1]
        came = f"{rows} row{'s' if rows > 1 else ''}, none of them finite" if rows else "no rows"
        raise ValueError(
            f"nothing to draw: {what} needs at least one row of finite {' and '.join(columns)}; got {came}"
        )
    return list(kept)


def share(name: str, values: Floats) -> None:
    """Raises unless all values are in [0, 1], up to rounding."""
    wrong: NDArray[np.bool_] = (values < -1e-6) | (values > 1 + 1e-6)
    if wrong.any():
        raise ValueError(f"{name} must be shares in [0, 1]; {wrong.sum()} are not, the first is {values[wrong][0]:g}")
