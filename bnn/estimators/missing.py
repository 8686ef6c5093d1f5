"""Missing targets of estimators: of several targets a row may miss some, which scikit-learn would refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn.estimators.networks import Floats


def without_missing(y: Any) -> tuple[Any, NDArray[np.bool_] | None]:
    """Targets with 0 where they are NaN, so that they pass for finite, and where that is; None where nowhere.

    Only of several targets some may be missing, and of every row one has to be known.

    >>> without_missing([[1.0, float("nan")], [2.0, 3.0]])
    (array([[1., 0.],
           [2., 3.]]), array([[False,  True],
           [False, False]]))
    """
    found = np.asarray(y) if hasattr(y, "__array__") or isinstance(y, list | tuple) else None
    if found is None or found.dtype.kind != "f" or found.ndim != 2 or found.shape[1] < 2:
        return y, None  # scikit-learn says what is wrong, if anything is
    missing = np.isnan(found)
    if not missing.any():
        return y, None
    rows = missing.all(axis=1).nonzero()[0].tolist()
    if rows:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise ValueError(f"every row of y needs a target that is known, and {len(rows)} have none, such as {shown}")
    return np.where(missing, 0.0, found), missing


def check_all_known(y: Floats) -> None:
    """Raises unless every target is known in some row of training."""
    empty = np.isnan(y.reshape(len(y), -1)).all(axis=0).nonzero()[0].tolist()
    if empty:
        raise ValueError(f"column {empty[0]} of y is NaN in all {len(y)} rows of training: leave it out")
