"""Reliability: does a class that is predicted with probability p turn out right in a share p of the cases?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bnn._common.extras import need
from bnn.plots.axes import finite_rows, key, next_series, share, unit_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AREA, LEAST = 200.0, 12.0  # points squared: of a marker with all inputs behind it, and of the smallest


class ReliabilityCurve(Protocol):
    """Bins (B,), as `bnn.calibration.calibration_curve` makes them."""

    @property
    def probability(self) -> Any: ...

    @property
    def frequency(self) -> Any: ...

    @property
    def weights(self) -> Any: ...


def reliability(ax: Axes, curve: ReliabilityCurve, *, label: str | None = None, color: str | None = None) -> Axes:
    """Observed frequency against predicted probability; on the diagonal, confidence is deserved.

    The area of a marker is the share of inputs behind it: `AREA` weight, and no less than `LEAST`.

    Args:
        ax: the axes.
        curve: `.probability`, `.frequency`, `.weights`, each (B,); bins with NaN or of weight 0 are skipped.
        label: of the series, in the key above.
        color: of the series; None takes the next of the palette.
    """
    p, f, w = finite_rows(
        "a reliability curve", probability=curve.probability, frequency=curve.frequency, weights=curve.weights
    )
    if not (w > 0).any():
        raise ValueError("nothing to draw: a reliability curve needs a bin of weight > 0; got none")
    share("probability", p)
    share("frequency", f)
    p, f, w = p[w > 0], f[w > 0], w[w > 0]
    look = next_series(ax, color)
    unit_square(ax)
    ax.plot(p, f, label=label, markevery=[], **look)  # its marker shows in the key; those of the bins follow
    area = np.maximum(AREA * w / max(1.0, w.sum()), LEAST)
    edge, face = look["color"], need("matplotlib.colors", "plots").to_rgba(look["color"], 0.5)
    look = {"marker": look["marker"], "linewidths": 1.0, "zorder": 3, "clip_on": False}  # whole at p = 1, too
    ax.scatter(p, f, s=area, facecolors=[face], edgecolors=edge, **look)
    ax.set_xlabel("predicted probability")
    ax.set_ylabel("observed frequency")
    key(ax)
    return ax
