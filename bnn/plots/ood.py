"""Out-of-distribution inputs: how a score is spread over both sets, and how well it tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn._common.extras import need
from bnn.metrics.checks import Floats
from bnn.plots.style import PALETTE, column, finite_rows, key, next_series, percent_ticks, share, unit_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TwoSets(Protocol):
    """Counts (B,) of two sets in the same bins, whose edges are (B + 1,)."""

    @property
    def edges(self) -> Any: ...

    @property
    def inside(self) -> Any: ...

    @property
    def outside(self) -> Any: ...


class Rates(Protocol):
    """A ROC curve (T,), from (0, 0) to (1, 1)."""

    @property
    def false_positive(self) -> Any: ...

    @property
    def true_positive(self) -> Any: ...


def score_histogram(
    ax: Axes,
    histogram: TwoSets,
    *,
    inside: str = "test",
    outside: str = "out of distribution",
    colors: tuple[str, str] | None = None,
    xlabel: str = "",
) -> Axes:
    """The share of each set in each bin: the test set filled, the out-of-distribution set hatched.

    Args:
        ax: the axes.
        histogram: `.edges` (B + 1,), and the counts `.inside` and `.outside`, (B,).
        inside, outside: what the sets are called, in the key above.
        colors: of the two sets.
        xlabel: what the score is.
    """
    edges = column("edges", histogram.edges)
    to_rgba = need("matplotlib.colors", "plots").to_rgba
    one, other = colors or PALETTE[:2]
    filled = {"facecolor": to_rgba(one, 0.35), "edgecolor": one}
    hatched = {"facecolor": "none", "edgecolor": other, "hatch": "/////"}
    # both are checked before one is drawn
    shares = [_shares(inside, histogram.inside, edges), _shares(outside, histogram.outside, edges)]
    for values, name, how in zip(shares, (inside, outside), (filled, hatched), strict=True):
        ax.stairs(values, edges, fill=True, label=name, linewidth=1.2, **how)
    percent_ticks(ax.yaxis)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(xlabel or "score")
    ax.set_ylabel("share of inputs")
    key(ax)
    return ax


def roc(
    ax: Axes, curve: Rates, *, auroc: float | None = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Out-of-distribution inputs that a threshold finds, against test inputs it takes for such; the diagonal is chance.

    Args:
        ax: the axes.
        curve: `.false_positive`, `.true_positive`, (T,).
        auroc: the area below, to be told in the key.
        label, color: of the series.
    """
    wrong, found = finite_rows("a ROC curve", false_positive=curve.false_positive, true_positive=curve.true_positive)
    share("false_positive", wrong)
    share("true_positive", found)
    area = None if auroc is None else f"AUROC {auroc:.3f}"
    name = f"{label} ({area})" if label and area else label or area
    look = next_series(ax, color)
    unit_square(ax)
    ax.plot(wrong, found, label=name, markevery=0.25 if len(wrong) > 2 else 1, **look)
    ax.set_xlabel("test inputs flagged by mistake")
    ax.set_ylabel("out-of-distribution inputs found")
    key(ax, inside="lower right")  # where only a detector worse than chance has its curve
    return ax


def _shares(name: str, counts: Any, edges: Floats) -> Floats:
    """Counts (B,) over their sum."""
    values = column(name, counts)
    if len(edges) != len(values) + 1 or not (np.diff(edges) > 0).all() or not np.isfinite(edges).all():
        raise ValueError(f"edges must be one more than counts, finite and rising; got {len(edges)} for {len(values)}")
    if not (values >= 0).all() or values.sum() == 0:
        raise ValueError(f"nothing to draw: counts of {name!r} must be >= 0 with a sum > 0; got {values.tolist()}")
    return np.asarray(values / values.sum())
