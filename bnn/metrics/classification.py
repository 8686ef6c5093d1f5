"""How good are class probabilities: accuracy, two proper scores, three calibration errors.

Calibration errors are ours: torchmetrics (1.9) puts a confidence of exactly 1 in a bin of its own, so that the errors
of a sure network do not cancel against those of its neighbours. The rest is a line each and asks for no package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn._common.checks import share, whole
from bnn.calibration import calibration_curve, expected_calibration_error
from bnn.metrics.checks import Floats, class_labels, probabilities
from bnn.metrics.registry import metric
from bnn.metrics.resampling import BinGaps, by_counts, mean_of

SMALLEST = float(np.finfo(np.float64).tiny)  # 2.2e-308, the smallest normal number: -log of it is 708.4

Probs = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]


def checked(probs: Any, labels: Any) -> tuple[Probs, Labels]:
    """Probabilities (N, C) and labels (N,) that fit them."""
    p = probabilities(probs)
    return p, class_labels(labels, p.shape)


def correct(probs: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """Whether the most probable class, the first of equals, is the label (N,)."""
    p, y = checked(probs, labels)
    return np.asarray(p.argmax(axis=1) == y)


def log_losses(probs: ArrayLike, labels: ArrayLike, eps: float = SMALLEST) -> Floats:
    """-log max(p_y, eps) of every datum (N,)."""
    p, y = checked(probs, labels)
    share("eps", eps)
    return -np.log(np.maximum(p[np.arange(len(y)), y].astype(np.float64), eps))


def squared_errors(probs: ArrayLike, labels: ArrayLike) -> Floats:
    """sum_c (p_c - [y = c])^2 of every datum (N,)."""
    p, y = checked(probs, labels)
    return np.asarray(np.square(p.astype(np.float64) - np.eye(p.shape[1])[y]).sum(axis=1))


@metric(
    "classification",
    "accuracy",
    "share of test inputs that are classified right",
    better="higher",
    format="percent",
    brief=True,
)
@by_counts(lambda probs, labels: mean_of(correct(probs, labels)))
def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Share of data whose most probable class, the first of equals, is the label.

    Args:
        probs: (N, C), rows that sum to 1.
        labels: (N,), class indices 0..C-1.

    >>> accuracy([[0.9, 0.1], [0.5, 0.5]], [0, 1])
    0.5
    """
    return float(correct(probs, labels).mean())


@metric("classification", "NLL", "negative log-likelihood: the price of the probability given to the truth", brief=True)
@by_counts(lambda probs, labels, eps=SMALLEST: mean_of(log_losses(probs, labels, eps)))
def nll(probs: ArrayLike, labels: ArrayLike, eps: float = SMALLEST) -> float:
    """Negative log-likelihood in nats, mean_n -log max(p_n,y_n, eps).

    A true class of probability 0 costs -log eps, by default 708.4 (the smallest normal float64) and never infinity:
    one such datum in 10,000 adds 0.07, so look for it when the NLL is out of proportion.

    Args:
        probs, labels: as for `accuracy`.
        eps: the floor of p, between 0 and 1.

    >>> round(nll([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 4)  # (-log 0.9 - log 0.5) / 2
    0.3993
    """
    return float(log_losses(probs, labels, eps).mean())


@metric("classification", "Brier score", "squared distance between the probabilities and the truth", shown=False)
@by_counts(lambda probs, labels: mean_of(squared_errors(probs, labels)))
def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """Brier score, mean_n sum_c (p_nc - [y_n = c])^2, from 0 to 2 (summed, not averaged, over classes).

    >>> round(brier([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 4)  # (0.02 + 0.5) / 2
    0.26
    """
    return float(squared_errors(probs, labels).mean())


def _gaps(tables: Callable[[], Iterable[Floats]]) -> BinGaps:
    """Of tables (N, B) that hold p_i - y_i of datum i in its bins; made anew each time, so that one is held at once."""
    return BinGaps(lambda weights: np.concatenate([weights @ one / len(one) for one in tables()], axis=1))


def _width_table(event: Probs, happened: NDArray[np.bool_], bins: int) -> Floats:
    """p_i - y_i in bins of equal width, those that are not empty (N, B)."""
    edges = (np.arange(1, bins) / bins).astype(event.dtype)  # as `calibration_curve` cuts them
    _, bin_of = np.unique(np.searchsorted(edges, event, side="left"), return_inverse=True)
    table = np.zeros((len(event), int(bin_of.max()) + 1))
    table[np.arange(len(event)), bin_of] = event - happened.astype(np.float64)
    return table


def _ece_gaps(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> BinGaps:
    p, y = checked(probs, labels)
    table = _width_table(p.max(axis=1), p.argmax(axis=1) == y, whole("bins", bins))
    return _gaps(lambda: [table])


@metric("classification", "ECE", "how far probabilities are from frequencies, on average", format="percent", brief=True)
@by_counts(_ece_gaps)
def ece(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error, sum_b |B_b| / N |mean confidence_b - accuracy_b| over bins of equal width.

    The confidence is the largest probability of a row. Bins are (b / bins, (b + 1) / bins]: confidence 1 is in the
    last one, empty bins count nothing. Edges are rounded to the type of `probs`.

    >>> round(ece([[1.0, 0.0], [1.0, 0.0], [0.96, 0.04]], [0, 1, 0]), 4)  # |2.96 / 3 - 2 / 3|
    0.32
    """
    p, y = checked(probs, labels)
    return expected_calibration_error(*calibration_curve(p, y, whole("bins", bins)))


def _adaptive_gaps(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> BinGaps:
    """The bins are those of the data; equal confidences count in each bin with the share of them that is there."""
    p, y = checked(probs, labels)
    whole("bins", bins)
    confidence = p.max(axis=1)
    _, group = np.unique(confidence, return_inverse=True)
    run = np.empty(len(y), np.intp)
    run[np.argsort(confidence)] = np.arange(len(y)) * bins // len(y)  # the bin of each rank
    in_bin = np.bincount(group * bins + run, minlength=(int(group.max()) + 1) * bins).reshape(-1, bins)
    gap = confidence.astype(np.float64) - (p.argmax(axis=1) == y)
    table = gap[:, None] * (in_bin / in_bin.sum(axis=1, keepdims=True))[group]
    return _gaps(lambda: [table])


@metric("classification", "adaptive ECE", "ECE in bins that hold equally many inputs", format="percent", shown=False)
@by_counts(_adaptive_gaps)
def adaptive_ece(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error over bins of equal size: the sorted confidences, cut into `bins` runs.

    Where equal confidences fall into several bins, the bins share their accuracy (as `calibration_curve` has it), so
    the order of the data does not matter.
    """
    p, y = checked(probs, labels)
    return expected_calibration_error(*calibration_curve(p, y, whole("bins", bins), equal_size_bins=True))


def _classwise_gaps(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> BinGaps:
    p, y = checked(probs, labels)
    whole("bins", bins)
    classes = p.shape[1]
    return _gaps(lambda: (_width_table(p[:, c], y == c, bins) / classes for c in range(classes)))


@metric("classification", "class-wise ECE", "mean over classes of the ECE of each", format="percent", shown=False)
@by_counts(_classwise_gaps)
def classwise_ece(probs: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Mean over all C classes of the equal-width calibration error of the event "the label is c", predicted with p_c.

    A class that never occurs counts like any other: its error is the probability it was given, mean_n p_nc.

    >>> round(classwise_ece([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], [0, 1]), 4)  # (0.1 + 0.2) / 2 for two classes, and 0
    0.1
    """
    p, y = checked(probs, labels)
    whole("bins", bins)
    curves = (calibration_curve(p[:, c], y == c, bins) for c in range(p.shape[1]))
    return float(np.mean([expected_calibration_error(*curve) for curve in curves]))
