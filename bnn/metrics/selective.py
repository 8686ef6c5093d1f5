"""Answering only where sure: accuracy, or any risk, against coverage, and the area under the risk-coverage curve."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn.metrics.checks import Floats, probabilities, same_shape, vector
from bnn.metrics.classification import correct
from bnn.metrics.registry import metric
from bnn.metrics.resampling import Statistic, by_counts, one_by_one, tie_means


class AccuracyCoverage(NamedTuple):
    """Accuracy on the k data of highest confidence, for k = 1..N."""

    coverage: Floats  # k / N
    accuracy: Floats


class RiskCoverage(NamedTuple):
    """Risk on the k data of least uncertainty, for k = 1..N."""

    coverage: Floats  # k / N
    risk: Floats


class _Ordered:
    """Data in descending order of confidence, a value of each (whether it is right), and which share a confidence."""

    def __init__(self, values: NDArray[Any], confidence: Floats, what: str = "correct") -> None:
        same_shape(**{what: values, "confidence": confidence})
        self.order = np.argsort(-confidence, kind="stable")
        self.values = values[self.order]
        _, self.group = np.unique(confidence[self.order], return_inverse=True)

    def mean(self, counts: Floats) -> Floats:
        """Of the first k, k = 1..N, expected over the order of equal confidences, each datum counted so often.

        In a random order each place of a tie holds, on average, the mean of the tie.
        """
        counts = counts[self.order]
        expected = np.repeat(tie_means(self.values, self.group, counts), counts.astype(np.intp))
        return np.asarray(np.cumsum(expected) / np.arange(1, len(expected) + 1))


def _ordered(probs: ArrayLike, labels: ArrayLike, confidence: ArrayLike | None) -> _Ordered:
    sure = probabilities(probs).max(axis=1).astype(np.float64) if confidence is None else confidence
    return _Ordered(correct(probs, labels), vector("confidence", sure, finite=False))


def _ordered_hits(hits: ArrayLike, confidence: ArrayLike) -> _Ordered:
    hit = vector("correct", hits)
    if not np.isin(hit, (0, 1)).all():
        raise ValueError(f"correct must be 0 or 1; got {hit[~np.isin(hit, (0, 1))][0]:g}")
    return _Ordered(hit == 1, vector("confidence", confidence, finite=False))


def _curve(ordered: _Ordered) -> AccuracyCoverage:
    n = len(ordered.order)
    return AccuracyCoverage(np.arange(1, n + 1) / n, ordered.mean(np.ones(n)))


def _risk(ordered: _Ordered, counts: Floats | None = None) -> float:
    counts = np.ones(len(ordered.order)) if counts is None else counts
    return max(0.0, float(1 - ordered.mean(counts).mean()))


def _aurc_by_counts(probs: ArrayLike, labels: ArrayLike, confidence: ArrayLike | None = None) -> Statistic:
    ordered = _ordered(probs, labels, confidence)
    return one_by_one(lambda counts: _risk(ordered, counts))


def _aurc_of_hits_by_counts(hits: ArrayLike, confidence: ArrayLike) -> Statistic:
    ordered = _ordered_hits(hits, confidence)
    return one_by_one(lambda counts: _risk(ordered, counts))


def accuracy_coverage(probs: ArrayLike, labels: ArrayLike, confidence: ArrayLike | None = None) -> AccuracyCoverage:
    """Accuracy on the k most certain data against coverage k / N, for k = 1..N.

    Data of equal confidence have no order: the accuracy is the expectation over all of theirs, so the order of the
    input does not matter.

    Args:
        probs: (N, C), rows that sum to 1.
        labels: (N,), class indices.
        confidence: (N,), larger is surer; None is the largest probability. `-entropy` is another.

    >>> accuracy_coverage([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]], [0, 1, 1])
    AccuracyCoverage(coverage=array([0.333..., 0.666..., 1. ]), accuracy=array([1. , 0.75 , 0.666...]))
    """
    return _curve(_ordered(probs, labels, confidence))


@metric("classification", "AURC", "mean error rate on the most certain inputs, over all shares of them", shown=False)
@by_counts(_aurc_by_counts)
def aurc(probs: ArrayLike, labels: ArrayLike, confidence: ArrayLike | None = None) -> float:
    """Area under the risk-coverage curve, 1/N sum_k (1 - accuracy on the k most certain data), ties by expectation.

    It is low if errors are few, and if those that are made have low confidence. Arguments as for `accuracy_coverage`.

    >>> round(aurc([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]], [0, 1, 1]), 4)  # (0 + 1/4 + 1/3) / 3
    0.1944
    """
    return _risk(_ordered(probs, labels, confidence))


def accuracy_coverage_of_hits(hits: ArrayLike, confidence: ArrayLike) -> AccuracyCoverage:
    """`accuracy_coverage` from whether each answer is right, 0 or 1 (N,), and how sure it was (N,)."""
    return _curve(_ordered_hits(hits, confidence))


@by_counts(_aurc_of_hits_by_counts)
def aurc_of_hits(hits: ArrayLike, confidence: ArrayLike) -> float:
    """`aurc` from whether each answer is right, 0 or 1 (N,), and how sure it was (N,).

    >>> aurc_of_hits([True, False], [0.9, 0.8])
    0.25
    """
    return _risk(_ordered_hits(hits, confidence))


def _ordered_losses(losses: ArrayLike, uncertainty: ArrayLike) -> _Ordered:
    return _Ordered(vector("losses", losses), -vector("uncertainty", uncertainty, finite=False), "losses")


def _risks(ordered: _Ordered, root: bool, counts: Floats | None = None) -> Floats:
    means = ordered.mean(np.ones(len(ordered.order)) if counts is None else counts)
    return np.asarray(np.sqrt(np.maximum(means, 0.0))) if root else means


def _risk_area_by_counts(losses: ArrayLike, uncertainty: ArrayLike, root: bool = False) -> Statistic:
    ordered = _ordered_losses(losses, uncertainty)
    return one_by_one(lambda counts: float(_risks(ordered, root, counts).mean()))


def risk_coverage(losses: ArrayLike, uncertainty: ArrayLike, root: bool = False) -> RiskCoverage:
    """Mean loss on the k data of least uncertainty against coverage k / N, for k = 1..N; ties by expectation.

        risk_k = 1/k sum_{i <= k} loss_i,   with `root` its square root: of squared errors the RMSE

    Args:
        losses: (N,), 0 or 1 for right and wrong, squared errors, or any other price of an answer.
        uncertainty: (N,), smaller is answered first: total, epistemic, ...
        root: whether the root is taken.

    >>> risk_coverage([4.0, 0.0, 0.0], [0.9, 0.1, 0.5])
    RiskCoverage(coverage=array([0.333..., 0.666..., 1. ]), risk=array([0. , 0. , 1.333...]))
    """
    ordered = _ordered_losses(losses, uncertainty)
    n = len(ordered.order)
    return RiskCoverage(np.arange(1, n + 1) / n, _risks(ordered, root))


@by_counts(_risk_area_by_counts)
def risk_area(losses: ArrayLike, uncertainty: ArrayLike, root: bool = False) -> float:
    """Area under the risk-coverage curve, 1/N sum_k risk_k; arguments as for `risk_coverage`. Of 0 and 1 it is `aurc`.

    >>> round(risk_area([4.0, 0.0, 0.0], [0.9, 0.1, 0.5]), 4)
    0.4444
    """
    return float(_risks(_ordered_losses(losses, uncertainty), root).mean())
