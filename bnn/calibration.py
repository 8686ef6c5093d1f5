"""Calibration: does an event that is predicted with probability p happen in a fraction p of the cases?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]


def calibration_curve(
    probabilities: ArrayLike,
    targets: ArrayLike,
    num_bins: int,
    top_class_only: bool = True,
    equal_size_bins: bool = False,
    min_p: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean predicted probability and observed frequency of the event, bin by bin.

    For the predictions (p_i, y_i) of bin B_b, with y_i = 1 if the event happened and 0 if not:

        probability_b = sum_{i in B_b} p_i / |B_b|,   frequency_b = sum_{i in B_b} y_i / |B_b|,   weight_b = |B_b| / N

    Equal width: B_b = (b / num_bins, (b + 1) / num_bins], edges rounded to the dtype of p; p = 0 is in the first bin.
    Equal size: the sorted predictions are cut into num_bins runs whose lengths differ by at most one. Predictions of
    the same p have no order, so each counts with the mean y of all that share its p. The curve is then the average over
    all orders of the tied ones: the order of the input does not matter, and bins stay equal however many say p = 1.

    Args:
        probabilities: (N, C) class probabilities, or (N,) probabilities of one binary event. Rounding error just
            outside [0, 1] is clipped.
        targets: (N,) labels 0..C-1 or (N, C) one-hot rows; 0 or 1, (N,), for a binary event.
        num_bins: number of bins.
        top_class_only: one prediction per row, p = max_c p_c, of the event that this class (the first of equals) is
            right; otherwise every p_c is a prediction of the event label = c. No difference for a binary event.
        equal_size_bins: bins of equal size instead of equal width.
        min_p: predictions with p < min_p are left out.

    Returns:
        probability, frequency, weights, each (num_bins,); an empty bin has NaN, NaN and 0.

    >>> probability, frequency, weights = calibration_curve([[0.1, 0.9], [0.7, 0.3], [0.2, 0.8]], [1, 0, 0], num_bins=4)
    >>> probability, frequency, weights
    (array([ nan,  nan, 0.7 , 0.85]), array([nan, nan, 1. , 0.5]), array([0. , 0. , 0.333..., 0.666...]))
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1; got {num_bins}")
    p, event = _predictions(_checked(probabilities), np.asarray(targets), top_class_only)
    kept = p >= min_p
    p, event = p[kept], event[kept]
    if p.size == 0:
        raise ValueError(f"no prediction is left: {kept.size} came, none of them has p >= min_p = {min_p}")
    if equal_size_bins:
        return _bin_means(p, _mean_over_ties(p, event), _equal_size(p, num_bins), num_bins)
    return _bin_means(p, event, _equal_width(p, num_bins), num_bins)


def expected_calibration_error(
    mean_probability_predicted: ArrayLike, observed_frequency: ArrayLike, bin_weights: ArrayLike
) -> float:
    """Expected calibration error of a calibration curve, sum_b w_b |p_b - f_b|; bins of weight 0 do not count.

    Args:
        mean_probability_predicted: p, (num_bins,), as `calibration_curve` returns it, and so are the other two.
        observed_frequency: f, (num_bins,).
        bin_weights: w, (num_bins,).

    >>> expected_calibration_error([0.25, 0.75, float("nan")], [0.5, 0.75, float("nan")], [0.5, 0.5, 0.0])
    0.125
    """
    p, f, w = (np.asarray(a, np.float64) for a in (mean_probability_predicted, observed_frequency, bin_weights))
    if not p.shape == f.shape == w.shape:
        raise ValueError(
            f"probabilities, frequencies and weights must have one shape; got {p.shape}, {f.shape}, {w.shape}"
        )
    used = w != 0
    return float(np.sum(w[used] * np.abs(p[used] - f[used])))


def _checked(probabilities: ArrayLike) -> Floats:
    """The probabilities as floats in [0, 1], (N,) or (N, C)."""
    p = np.asarray(probabilities)
    if p.ndim not in (1, 2) or (p.ndim == 2 and p.shape[1] == 0):
        raise ValueError(f"probabilities must have shape (N,) or (N, C) with C >= 1; got {p.shape}")
    if not np.issubdtype(p.dtype, np.floating):
        p = p.astype(np.float64)
    slack = 8 * np.finfo(p.dtype).eps  # exp(logsumexp - log K) exceeds 1 by a few eps
    outside = ~((p >= -slack) & (p <= 1 + slack))  # true for NaN
    if outside.any():
        raise ValueError(f"probabilities must be in [0, 1]; {outside.sum()} are not, the first is {p[outside][0]}")
    clipped: Floats = np.clip(p, 0, 1)
    return clipped


def _predictions(p: Floats, targets: NDArray[Any], top_class_only: bool) -> tuple[Floats, NDArray[np.bool_]]:
    """Predicted probabilities and whether their events happened, both (number of predictions,)."""
    if p.ndim == 1:
        return p, _labels(targets, p.shape, num_classes=2) == 1
    labels = _labels(targets, p.shape, num_classes=p.shape[1])
    if top_class_only:
        return p.max(axis=1), p.argmax(axis=1) == labels
    happened = labels[:, None] == np.arange(p.shape[1])  # (N, C)
    return p.ravel(), happened.ravel()


def _labels(targets: NDArray[Any], shape: tuple[int, ...], num_classes: int) -> NDArray[Any]:
    """Labels 0..num_classes-1, (N,), from labels or one-hot rows that fit probabilities of this shape."""
    if targets.shape not in (shape, shape[:1]):
        expected = " or ".join(str(s) for s in dict.fromkeys((shape[:1], shape)))
        raise ValueError(f"targets for probabilities of shape {shape} must have shape {expected}; got {targets.shape}")
    if targets.ndim == 2:
        if not (np.isin(targets, (0, 1)).all() and (targets.sum(axis=1) == 1).all()):
            raise ValueError(f"targets of shape {targets.shape} must be one-hot: a single 1 in each row, 0 elsewhere")
        return np.asarray(targets.argmax(axis=1))
    unknown = ~np.isin(targets, np.arange(num_classes))  # true for NaN and fractions
    if unknown.any():
        raise ValueError(f"targets must be labels from 0 to {num_classes - 1}; got {targets[unknown][0]}")
    return targets


def _equal_width(p: Floats, num_bins: int) -> NDArray[np.intp]:
    """Index of the bin (lo, hi] of each prediction, (N,)."""
    edges = np.arange(1, num_bins) / num_bins  # inner ones only: nothing falls below the first or above the last bin
    return np.searchsorted(edges.astype(p.dtype), p, side="left")


def _equal_size(p: Floats, num_bins: int) -> NDArray[np.intp]:
    """Index of the bin of each prediction, (N,), by its rank."""
    bins = np.empty(p.size, np.intp)
    bins[np.argsort(p)] = np.arange(p.size) * num_bins // p.size
    return bins


def _mean_over_ties(p: Floats, event: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean event of the predictions that share a probability, (N,)."""
    _, group = np.unique(p, return_inverse=True)
    mean = np.bincount(group, weights=event) / np.bincount(group)
    return np.asarray(mean[group], np.float64)


def _bin_means(
    p: Floats, event: NDArray[Any], bins: NDArray[np.intp], num_bins: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean p and mean event of every bin, NaN for an empty one, and its share of the predictions."""
    counts = np.bincount(bins, minlength=num_bins)
    sizes = np.where(counts > 0, counts, np.nan)  # 0 / NaN is NaN and warns of nothing
    probability = np.bincount(bins, weights=p, minlength=num_bins) / sizes
    frequency = np.bincount(bins, weights=event, minlength=num_bins) / sizes
    return probability, frequency, counts / p.size
