"""Temperature scaling: one number, learned on validation data, that makes a network less or more sure of itself.

softmax(z / T) is the same for logits z and for log-probabilities, which differ by a constant per row. As a function of
1 / T the NLL is convex, so its slope has one root: Newton steps, kept in a bracket, find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn.metrics.checks import Floats, class_labels, numbers, probabilities
from bnn.metrics.classification import SMALLEST, log_losses, nll
from bnn.metrics.registry import metric

BOUNDS = (0.05, 20.0)  # of T: wider than what trained networks need


def temperature_scaling(logits: ArrayLike, labels: ArrayLike, bounds: tuple[float, float] = BOUNDS) -> float:
    """The T within `bounds` that minimises the NLL of softmax(logits / T).

    Data that are all right have no minimum (the surer the better): T is then the lower bound, and for data that are
    worse than guessing the upper one. Where T changes nothing it is 1, or the bound next to it. An entry of -inf counts
    as log of the smallest normal float64 below the row's largest.

    Args:
        logits: (N, C), or log-probabilities.
        labels: (N,), class indices.
        bounds: the least and the largest T.

    >>> round(temperature_scaling([[2.0, 0.0]] * 4, [0, 0, 0, 1]), 4)  # softmax(2 / T) = 3/4 for T = 2 / log 3
    1.8205
    """
    z = _scores(logits)
    y = class_labels(labels, z.shape)
    low, high = bounds
    if not 0 < low < high < np.inf:
        raise ValueError(f"bounds must be 0 < least < largest T < infinity; got {bounds!r}")
    gaps = z - z[np.arange(len(y)), y][:, None]  # to the true class
    return 1 / best_inverse(lambda b: _slope(gaps, b), 1 / high, 1 / low)


def best_inverse(
    derivatives: Callable[[float], tuple[float, float]], slow: float, fast: float, start: float = 1.0
) -> float:
    """The inverse temperature in [slow, fast] where the slope is 0: the end it points to, or `start` where it is flat.

    Args:
        derivatives: slope and curvature of the NLL at an inverse temperature.
        start: where the search begins, moved into the bounds.
    """
    b = min(max(start, slow), fast)
    slope, curvature = derivatives(b)
    end = fast if slope < 0 else slow
    if slope != 0 and derivatives(end)[0] * slope >= 0:  # no change of sign; sure data underflow to a slope of 0
        return end
    for _ in range(200):  # bisection alone needs 60
        if slope == 0:
            break
        slow, fast = (b, fast) if slope < 0 else (slow, b)
        newton = b - slope / curvature if curvature > 0 else slow
        before, b = b, newton if slow < newton < fast else 0.5 * (slow + fast)
        if abs(b - before) <= 1e-12 * b:
            break
        slope, curvature = derivatives(b)
    return b


def _slope(gaps: Floats, b: float) -> tuple[float, float]:
    """First and second derivative of mean_n log sum_c exp(b gap_nc) with respect to b, the inverse temperature."""
    w = np.exp(b * (gaps - gaps.max(axis=1, keepdims=True)))
    w /= w.sum(axis=1, keepdims=True)
    mean = (w * gaps).sum(axis=1)
    spread = (w * np.square(gaps - mean[:, None])).sum(axis=1)
    return float(mean.mean()), float(spread.mean())


def apply_temperature(probs: ArrayLike, temperature: float) -> Floats:
    """softmax(log p / T) of class probabilities (N, C); a probability of 0 counts as the smallest normal float64.

    >>> apply_temperature([[0.8, 0.2]], 2.0)
    array([[0.666..., 0.333...]])
    """
    if not 0 < temperature < np.inf:
        raise ValueError(f"temperature must be positive and finite; got {temperature!r}")
    z = _log(probabilities(probs)) / temperature
    w = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(w / w.sum(axis=1, keepdims=True))


def nll_after_temperature(
    probs: ArrayLike,
    labels: ArrayLike,
    val_probs: ArrayLike,
    val_labels: ArrayLike,
    bounds: tuple[float, float] = BOUNDS,
) -> float:
    """The NLL of (probs, labels) at the temperature that is best for the validation data, of which none should be here.

    Args:
        probs, val_probs: (N, C) and (V, C), rows that sum to 1.
        labels, val_labels: (N,) and (V,), class indices.
        bounds: of the temperature.
    """
    temperature = temperature_scaling(_log(probabilities(val_probs)), val_labels, bounds)
    return nll(apply_temperature(probs, temperature), labels)


def _log(probs: NDArray[np.floating[Any]]) -> Floats:
    return np.asarray(np.log(np.maximum(probs.astype(np.float64), SMALLEST)))


def _scores(logits: ArrayLike) -> Floats:
    """Logits or log-probabilities (N, C), every row's largest at 0, finite."""
    z = numbers("logits", logits, finite=False)
    if z.ndim != 2:
        raise ValueError(f"logits must have shape (N, C); got {z.shape}")
    top = z.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("every row of logits needs a largest one that is finite")
    return np.where(np.isneginf(z), np.log(SMALLEST), z - top)


@metric(
    "classification",
    "NLL after temperature scaling",
    "NLL at the temperature that fits validation data best",
    name="nll_after_temperature",
    shown=False,
)
def losses_at_temperature(probs: ArrayLike, labels: ArrayLike, temperature: float) -> Floats:
    """-log p_y of every datum (N,), at a temperature."""
    return log_losses(apply_temperature(probs, temperature), labels)
