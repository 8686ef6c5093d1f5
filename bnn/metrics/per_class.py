"""Class by class: the confusion matrix, precision, recall and F1, and accuracy where all classes count alike.

What 0 / 0 is: the recall of a class that no datum has and the precision of one that is never predicted are NaN, as
nothing was measured; F1 is NaN only where both hold, and 0 where no datum of the class, or no prediction of it, is
right. Balanced accuracy is the mean over the classes that data have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn.metrics.checks import Floats
from bnn.metrics.classification import checked, correct
from bnn.metrics.registry import metric
from bnn.metrics.resampling import Statistic, by_counts

Counts = NDArray[np.intp]


class PerClass(NamedTuple):
    """What is measured of each of C classes, (C,) each.

    Args:
        support: data of the class.
        predicted: data that it is predicted for.
        precision: share of `predicted` that is right; NaN where it is never predicted.
        recall: share of `support` that is found; NaN where there are none.
        f1: 2 right / (support + predicted); NaN where both are 0.
    """

    support: Counts
    predicted: Counts
    precision: Floats
    recall: Floats
    f1: Floats


def confusion_matrix(probs: ArrayLike, labels: ArrayLike) -> Counts:
    """How many data of class i (row) are predicted as class j (column), (C, C); the first of equals is predicted.

    Args:
        probs: (N, C), rows that sum to 1.
        labels: (N,), class indices 0..C-1.

    >>> confusion_matrix([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]).tolist()
    [[1, 0], [1, 1]]
    """
    p, y = checked(probs, labels)
    classes = p.shape[1]
    return np.bincount(classes * y + p.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


def per_class(probs: ArrayLike, labels: ArrayLike) -> PerClass:
    """Support, predictions, precision, recall and F1 of every class; arguments as for `confusion_matrix`.

    >>> per_class([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]).recall.tolist()
    [1.0, 0.5]
    """
    return of_confusion(confusion_matrix(probs, labels))


def of_confusion(matrix: ArrayLike) -> PerClass:
    """The same from a confusion matrix (C, C)."""
    counts = np.asarray(matrix)
    right, support, predicted = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    return PerClass(
        support, predicted, _ratio(right, predicted), _ratio(right, support), _ratio(2 * right, support + predicted)
    )


def _ratio(of: Counts, to: Counts) -> Floats:
    """NaN where `to` is 0."""
    return np.where(to > 0, of / np.where(to > 0, to, 1), np.nan)


def _recalls(probs: ArrayLike, labels: ArrayLike) -> Statistic:
    """The mean of recalls over the classes that a resample has."""
    _, y = checked(probs, labels)
    order = np.argsort(y, kind="stable")
    starts = np.unique(y[order], return_index=True)[1]  # of the runs of one class
    right = correct(probs, labels)[order].astype(np.float64)

    def statistic(counts: Floats) -> Floats:
        by_class = counts[:, order]  # (R, N)
        support = np.add.reduceat(by_class, starts, axis=1)  # (R, classes that occur)
        found = np.add.reduceat(by_class * right, starts, axis=1)
        return np.asarray((found / np.where(support > 0, support, 1)).sum(axis=1) / (support > 0).sum(axis=1))

    return statistic


@metric(
    "classification",
    "balanced accuracy",
    "accuracy where every class counts alike, however rare: the mean of the classes' recalls",
    better="higher",
    format="percent",
    shown="unequal",
)
@by_counts(_recalls)
def balanced_accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean recall over the classes that occur, mean_c mean_{n: y_n = c} [argmax p_n = c].

    A network that always gives one answer has 1 / C, however frequent that class; where classes are equally frequent it
    is the accuracy.

    >>> balanced_accuracy([[0.9, 0.1]] * 10, [0] * 9 + [1])
    0.5
    """
    return float(np.nanmean(per_class(probs, labels).recall))
