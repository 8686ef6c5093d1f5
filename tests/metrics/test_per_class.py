"""Class by class, against scikit-learn; bootstrap intervals against repeated rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from sklearn import metrics as sk

from bnn.metrics import balanced_accuracy, bootstrap, classification_metrics, confusion_matrix, per_class, registry
from tests.metrics.metric_inputs import CASES, Case, batches, random_case


def check_against_sklearn(probs: np.ndarray, labels: np.ndarray) -> None:
    guess, classes = probs.argmax(1), np.arange(probs.shape[1])
    found = per_class(probs, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are not there
        wanted = sk.precision_recall_fscore_support(labels, guess, labels=classes, zero_division=np.nan)
        balanced = sk.balanced_accuracy_score(labels, guess)
    np.testing.assert_array_equal(confusion_matrix(probs, labels), sk.confusion_matrix(labels, guess, labels=classes))
    np.testing.assert_allclose(found.precision, wanted[0])
    np.testing.assert_allclose(found.recall, wanted[1])
    np.testing.assert_allclose(found.f1, wanted[2])
    np.testing.assert_array_equal(found.support, wanted[3])
    np.testing.assert_array_equal(found.predicted, np.bincount(guess, minlength=len(classes)))
    assert balanced_accuracy(probs, labels) == pytest.approx(balanced)


@pytest.mark.parametrize(("probs", "labels"), list(CASES.values()), ids=list(CASES))
def test_sklearn_agrees(probs: np.ndarray, labels: np.ndarray) -> None:
    if probs.shape[1] == 1:
        assert balanced_accuracy(probs, labels) == 1
    else:
        check_against_sklearn(probs, labels)


@given(batches())
def test_sklearn_agrees_on_whole_numbers(case: Case) -> None:
    check_against_sklearn(*case)


def test_what_nothing_over_nothing_is() -> None:
    """Class 0 is found once of twice, 1 is there and never predicted, 2 predicted and never there, 3 neither."""
    probs = np.eye(4)[[0, 2, 0]]
    found = per_class(probs, [0, 0, 1])
    np.testing.assert_array_equal(found.recall, [0.5, 0, np.nan, np.nan])
    np.testing.assert_array_equal(found.precision, [0.5, np.nan, 0, np.nan])
    np.testing.assert_array_equal(found.f1, [0.5, 0, 0, np.nan])
    assert balanced_accuracy(probs, [0, 0, 1]) == 0.25


def test_one_answer_for_all_has_one_over_the_number_of_classes() -> None:
    probs = np.tile([0.9, 0.06, 0.04], (100, 1))
    labels = np.repeat([0, 1, 2], [80, 15, 5])
    assert balanced_accuracy(probs, labels) == pytest.approx(1 / 3)


def test_intervals_are_those_of_repeated_rows() -> None:
    """Rare classes, which some resamples lack."""
    probs, _ = random_case(60, 3)
    labels = np.repeat([0, 1, 2], [50, 8, 2])
    fast = bootstrap(balanced_accuracy, probs, labels, resamples=300)
    slow = bootstrap(lambda p, y: balanced_accuracy(p, y), probs, labels, resamples=300)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high))
    assert classification_metrics(probs, labels, resamples=300)["balanced_accuracy"] == fast


def test_comparisons_show_it_where_classes_are_unequal() -> None:
    assert "balanced_accuracy" not in [one.name for one in registry.shown("classification")]
    assert "balanced_accuracy" in [one.name for one in registry.shown("classification", unequal=True)]


def test_shown_is_checked() -> None:
    with pytest.raises(ValueError, match="unknown shown 'sometimes'"):
        registry.metric("classification", "title", "about", shown="sometimes")
