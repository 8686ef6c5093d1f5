"""Which class is taken for which: the confusion matrix, and of many classes the most frequent mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn._common.extras import need
from bnn.metrics.checks import to_numpy
from bnn.plots.style import FAINT, INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEEPEST = 0.6  # how much of the colour the fullest cell has, so that ink can be read on it
LONGEST = 14  # letters of a name on an axis
CELL = (0.5, 0.45)  # inches of a cell, which two lines of text fit into
NUMBER, SHARE = 8.2, 7.2  # points of the two


def confusion_matrix(ax: Axes, counts: Any, names: Sequence[str], *, color: str | None = None) -> Axes:
    """Rows are true classes and columns predicted ones: how many, below it the share of the row, which also shades it.

    Args:
        ax: the axes.
        counts: (C, C) whole numbers.
        names: of the C classes.
        color: of the shade; None is the first of the palette.
    """
    table = to_numpy(counts)  # (C, C)
    if table.ndim != 2 or table.shape != (len(names), len(names)) or not table.size or (table < 0).any():
        raise ValueError(f"expected counts (C, C), 0 or more, and C names; got {table.shape} and {len(names)} names")
    totals = table.sum(axis=1, keepdims=True)
    shares = table / np.where(totals > 0, totals, 1)
    face = need("matplotlib.colors", "plots").to_rgba
    shade = color or PALETTE[0]
    rectangle = need("matplotlib.patches", "plots").Rectangle
    for i, j in product(range(len(names)), repeat=2):  # true, predicted
        depth = DEEPEST * float(shares[i, j])
        ax.add_patch(rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=face(shade, depth), edgecolor=FAINT, linewidth=0.5))
        if table[i, j]:
            ax.text(j, i + 0.02, f"{table[i, j]:,}", ha="center", va="bottom", fontsize=NUMBER, color=INK)
            ax.text(j, i + 0.06, _percent(shares[i, j]), ha="center", va="top", fontsize=SHARE, color=INK)
    _class_axes(ax, names)
    return ax


def _class_axes(ax: Axes, names: Sequence[str]) -> None:
    places, labels = range(len(names)), [_short(name) for name in names]
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel="predicted", ylabel="true")
    wide = max(map(len, labels)) > 5
    ax.set_xticks(places, labels, rotation=45 if wide else 0, ha="right" if wide else "center", rotation_mode="anchor")
    ax.set_yticks(places, labels)
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def frequent_mistakes(ax: Axes, mistakes: Sequence[Any], *, color: str | None = None) -> Axes:
    """The most frequent mistakes as bars, the most frequent on top: the true class, and what it is taken for.

    Args:
        ax: the axes.
        mistakes: each with `.true`, `.predicted`, `.inputs` and `.share` (of the true class).
        color: of the bars; None is the first of the palette.
    """
    if not mistakes:
        raise ValueError("nothing to draw: there are no mistakes")
    places = np.arange(len(mistakes))
    ax.barh(places, [one.inputs for one in mistakes], height=0.7, color=color or PALETTE[0], alpha=DEEPEST)
    for place, one in enumerate(mistakes):
        text = f" {one.inputs:,} ({_percent(one.share)})"
        ax.text(one.inputs, place, text, va="center", ha="left", fontsize=NUMBER, color=INK)
    ax.set_yticks(places, [f"{_short(one.true)} → {_short(one.predicted)}" for one in mistakes])
    ax.set(xlim=(0, 1.3 * max(one.inputs for one in mistakes)), ylim=(len(mistakes) - 0.5, -0.5), xlabel="test inputs")
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    return ax


def matrix_size(names: Sequence[str]) -> tuple[float, float]:
    """Inches of a figure in which the numbers of a confusion matrix of these classes can be read."""
    letters = max(len(_short(name)) for name in names)
    width, height = (max(1.6, side * len(names)) for side in CELL)
    return round(width + 0.65 + 0.075 * letters, 2), round(height + 0.7 + (0.055 * letters if letters > 5 else 0), 2)


def _short(name: str) -> str:
    """A name as it fits on an axis, without formulas."""
    half = LONGEST // 2
    short = name if len(name) <= LONGEST else f"{name[:half]}…{name[1 - half :]}"
    return short.replace("$", r"\$")


def _percent(share: float) -> str:
    """A share in whole per cent, 0 or 100 only where it is."""
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
