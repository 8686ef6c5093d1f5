"""How scores are spread in and out of distribution: histograms in shared bins, and ROC curves."""

from __future__ import annotations

import math

import numpy as np

from bnn.evaluation.outputs import Array, Outputs
from bnn.evaluation.pieces import ROC, Histogram

BINS = 30
POINTS = 200  # of a curve that are kept, at most


def histogram(name: str, inside: Outputs, outside: Outputs) -> Histogram:
    """Counts of the score `name` over its whole range: that of the definition for classes, else what was seen."""
    both = [np.asarray(one.scores[name], np.float64) for one in (inside, outside)]
    classes = inside.centre.shape[1] if "max_prob" in inside.scores else 0
    seen = max(float(part.max()) for part in both)
    highest = {"max_prob": 1 - 1 / max(classes, 1), "entropy": math.log(max(classes, 1))}.get(name, seen)
    highest = max(highest, seen) or 1.0
    edges = np.linspace(0.0, highest, BINS + 1)
    counts = [np.histogram(part.clip(0.0, highest), edges)[0] for part in both]
    return Histogram(tuple(edges.tolist()), *(tuple(one.tolist()) for one in counts))


def roc(scores_in: Array, scores_out: Array) -> ROC:
    """Shares of both sets with a score at or above every threshold; inputs of equal score share one.

    >>> import numpy as np
    >>> roc(np.array([0.0, 0.5]), np.array([0.5, 1.0]))
    ROC(false_positive=(0.0, 0.0, 0.5, 1.0), true_positive=(0.0, 0.5, 1.0, 1.0))
    """
    inside, outside = (np.sort(np.asarray(part, np.float64)) for part in (scores_in, scores_out))
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    shares = [np.concatenate([[0.0], 1 - np.searchsorted(part, levels) / len(part)]) for part in (inside, outside)]
    kept = _kept(*shares)
    return ROC(*(tuple(part[kept].tolist()) for part in shares))


def _kept(false_positive: Array, true_positive: Array) -> Array:
    """Indices of at most `POINTS` points, evenly along the curve, its ends among them."""
    n = len(false_positive)
    if n <= POINTS:
        return np.arange(n)
    length = false_positive + true_positive  # both rise: the distance walked along the axes
    return np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], POINTS)).clip(0, n - 1))
