"""Accuracy-coverage and AURC against the average over all orders of tied data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_inputs import every_case
from numpy.testing import assert_allclose

from bnn.metrics import accuracy, accuracy_coverage, accuracy_coverage_of_hits, aurc, aurc_of_hits

FEW = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=6)


def over_all_orders(pairs: list[tuple[bool, float]]) -> np.ndarray:
    """Accuracy on the first k, averaged over all orders that descend in confidence."""
    curves = []
    for order in itertools.permutations(pairs):
        confidences = [c for _, c in order]
        if confidences == sorted(confidences, reverse=True):
            curves.append(np.cumsum([hit for hit, _ in order]) / np.arange(1, len(order) + 1))
    return np.mean(curves, axis=0)


@given(FEW)
def test_ties_by_all_orders(pairs: list[tuple[bool, float]]) -> None:
    hits, confidence = zip(*pairs, strict=True)
    want = over_all_orders(pairs)
    curve = accuracy_coverage_of_hits(hits, confidence)
    assert_allclose(curve.accuracy, want, atol=1e-12)
    assert_allclose(curve.coverage, np.arange(1, len(pairs) + 1) / len(pairs))
    assert aurc_of_hits(hits, confidence) == pytest.approx(1 - want.mean(), abs=1e-12)


@every_case
def test_from_probabilities(probs: np.ndarray, labels: np.ndarray) -> None:
    hits, confidence = probs.argmax(1) == labels, probs.max(1)
    assert aurc(probs, labels) == aurc_of_hits(hits, confidence)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    assert aurc(probs[shuffled], labels[shuffled]) == pytest.approx(aurc(probs, labels), abs=1e-12)
    assert accuracy_coverage(probs, labels).accuracy[-1] == pytest.approx(accuracy(probs, labels), abs=1e-12)
    surest = confidence == confidence.max()
    assert accuracy_coverage(probs, labels).accuracy[0] == pytest.approx(hits[surest].mean(), abs=1e-12)


def test_without_ties_by_a_loop() -> None:
    rng = np.random.default_rng(0)
    hits, confidence = rng.random(50) < 0.7, rng.permutation(50)
    risks = [np.mean(~hits[np.argsort(-confidence)[:k]]) for k in range(1, 51)]
    assert aurc_of_hits(hits, confidence) == pytest.approx(np.mean(risks))


def test_another_confidence() -> None:
    probs, labels = np.array([[0.9, 0.1], [0.6, 0.4]]), [1, 0]
    assert aurc(probs, labels) == pytest.approx((1 + 1 / 2) / 2)
    assert aurc(probs, labels, confidence=[0.0, 1.0]) == pytest.approx((0 + 1 / 2) / 2)
    assert aurc(probs, labels, confidence=[0.0, 0.0]) == pytest.approx(1 / 2)
    assert_allclose(accuracy_coverage(probs, labels, confidence=[-1.0, -0.5]).accuracy, [1, 0.5])


def test_all_right_and_all_wrong() -> None:
    assert aurc_of_hits([1, 1, 1], [0.3, 0.3, 0.1]) == 0.0
    assert aurc_of_hits([0, 0], [0.3, 0.1]) == 1.0


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="shapes must be equal"):
        aurc_of_hits([1, 0], [0.5])
    with pytest.raises(ValueError, match="correct must be 0 or 1; got 2"):
        aurc_of_hits([1, 2], [0.5, 0.6])
    with pytest.raises(ValueError, match="confidence must be not NaN"):
        aurc([[0.5, 0.5]], [0], confidence=[np.nan])
