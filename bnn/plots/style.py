"""The look of every plot: its colours, how series differ, and the settings of matplotlib behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bnn._common.extras import need

# Contrast of at least 3 both on white and on near-black; apart without red or green cones too, the first four the most.
PALETTE = ("#3794f6", "#d47e41", "#16725b", "#c63f91", "#926c0e", "#7a48d9", "#989285", "#2c85b5")
INK = "#23272e"  # text and axes
FAINT = "#b7bec8"  # guides and grid
SURFACE = "#ffffff"  # behind the plot, and the edge between overlapping markers

MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p")
LINESTYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


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
