"""Real targets of an estimator, of which some may be missing where there are several, and their R^2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bnn._common.extras import need
from bnn.data.array_sets import ArrayTarget
from bnn.data.target_scale import check_known
from bnn.estimators.networks import Floats

_metrics = need("sklearn.metrics", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")

CHECKS: dict[str, Any] = {"dtype": np.float64, "ensure_2d": False, "ensure_all_finite": "allow-nan"}  # of check_array


def names_of(y: Any) -> list[str]:
    """Names of the targets, of a data frame; others have none."""
    return [str(name) for name in getattr(y, "columns", ())]


def check_targets(y: Floats) -> None:
    """Raises unless a target on its own, (N,) or (N, 1), is known in every row, and one of several, (N, D), in each."""
    if y.ndim == 2 and y.shape[1] > 1:
        ArrayTarget("regression").numbers(y)
        return
    gone = int(np.isnan(y).sum())
    if gone:
        raise ValueError(
            f"Input y contains NaN in {gone} of {len(y)} rows: a target on its own has to be known; leave out such rows"
        )


def check_each_known(y: Floats, part: str, names: Sequence[str]) -> None:
    """Raises unless every one of several targets (N, D) is known in some row of this part."""
    check_known(torch.from_numpy(y.copy()), part, names)  # which may be read-only


def r2_of_known(y: Any, predicted: Floats, sample_weight: Any = None) -> float:
    """1 - sum (y - predicted)^2 / sum (y - mean y)^2 over the rows where a target is known, averaged over targets.

    Args:
        y: (N, D), of which some are NaN.
        predicted: (N, D).
        sample_weight: (N,), of the rows.
    """
    names, y = names_of(y), _validation.check_array(y, input_name="y", **CHECKS)
    _validation.check_consistent_length(y, predicted, sample_weight)
    if y.shape != predicted.shape:
        raise ValueError(f"y must hold {predicted.shape[1]} targets, {predicted.shape}, as in fit; got {y.shape}")
    check_targets(y)
    check_each_known(y, "scored", names)
    weight = None if sample_weight is None else np.asarray(sample_weight)
    scores = []
    for column, means in zip(y.T, predicted.T, strict=True):
        known = ~np.isnan(column)
        own = None if weight is None else weight[known]
        scores.append(_metrics.r2_score(column[known], means[known], sample_weight=own))
    return float(np.mean(scores))
