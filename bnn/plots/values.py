"""What every plot asks of its numbers: columns of one length, of which something is left to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn.metrics.checks import Floats, same_shape, to_numpy


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
