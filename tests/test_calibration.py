"""Calibration curves against plain loops, averages over all orders of tied predictions, and scikit-learn."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.calibration import calibration_curve as sklearn_curve

from bnn.calibration import calibration_curve, expected_calibration_error

# Thirds, quarters and the like fall on bin edges; 0, 1 and repeated draws make ties.
PROBABILITIES = st.one_of(
    st.sampled_from([0.0, 1.0, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.75, 0.9]),
    st.floats(0.0, 1.0, allow_subnormal=False),
)
BINARY = st.lists(st.tuples(PROBABILITIES, st.integers(0, 1)), min_size=1, max_size=30)


def softmax_batch(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.5), size=n), rng.integers(classes, size=n)


def averages(bins: list[list[tuple[float, float]]]) -> tuple[list[float], list[float], list[float]]:
    """The definition: mean p, mean event and share of each bin."""
    total = sum(len(b) for b in bins)
    probability = [sum(p for p, _ in b) / len(b) if b else math.nan for b in bins]
    frequency = [sum(y for _, y in b) / len(b) if b else math.nan for b in bins]
    return probability, frequency, [len(b) / total for b in bins]


def width_loop(pairs: list[tuple[float, float]], num_bins: int) -> tuple[list[float], list[float], list[float]]:
    bins: list[list[tuple[float, float]]] = [[] for _ in range(num_bins)]
    for p, y in pairs:
        inside = [b for b in range(num_bins) if b / num_bins < p <= (b + 1) / num_bins]
        bins[inside[0] if inside else 0].append((p, y))
    return averages(bins)


def size_loop(ordered: list[tuple[float, float]], num_bins: int) -> tuple[list[float], list[float], list[float]]:
    """Runs of the predictions in the order given: the one of rank i is in the bin that i / N lies in."""
    bins: list[list[tuple[float, float]]] = [[] for _ in range(num_bins)]
    for rank, pair in enumerate(ordered):
        bins[math.floor(Fraction(rank * num_bins, len(ordered)))].append(pair)
    return averages(bins)


def events(probabilities: np.ndarray, labels: np.ndarray, top_class_only: bool) -> list[tuple[float, float]]:
    pairs = []
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        classes = [row.index(max(row))] if top_class_only else range(len(row))
        pairs += [(row[c], float(label == c)) for c in classes]
    return pairs


def assert_curves(actual: tuple[np.ndarray, ...], expected: tuple[list[float], ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert_allclose(a, e, rtol=1e-12, atol=1e-12)  # NaN equals NaN


@given(BINARY, st.integers(1, 12))
def test_equal_width_is_the_loop_over_bins(pairs: list[tuple[float, int]], num_bins: int) -> None:
    assert_curves(calibration_curve(*zip(*pairs, strict=True), num_bins=num_bins), width_loop(pairs, num_bins))


@pytest.mark.parametrize("min_p", [0.0, 0.3])
@pytest.mark.parametrize("top_class_only", [True, False])
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_classes_are_the_loop_over_rows(classes: int, top_class_only: bool, min_p: float) -> None:
    probabilities, labels = softmax_batch(200, classes)
    pairs = [(p, y) for p, y in events(probabilities, labels, top_class_only) if p >= min_p]
    curve = calibration_curve(probabilities, labels, 10, top_class_only, min_p=min_p)
    assert_curves(curve, width_loop(pairs, 10))
    curve = calibration_curve(probabilities, labels, 7, top_class_only, equal_size_bins=True, min_p=min_p)
    if classes > 1:  # one class is one big tie
        assert_curves(curve, size_loop(sorted(pairs), 7))


@given(
    st.lists(st.tuples(st.sampled_from([0.2, 0.5, 1.0]), st.integers(0, 1)), min_size=1, max_size=6), st.integers(1, 4)
)
def test_equal_size_is_the_average_over_all_orders_of_ties(pairs: list[tuple[float, int]], num_bins: int) -> None:
    orders = [o for o in itertools.permutations(pairs) if [p for p, _ in o] == sorted(p for p, _ in pairs)]
    expected = tuple(np.mean([size_loop(list(o), num_bins) for o in orders], axis=0))
    assert_curves(calibration_curve(*zip(*pairs, strict=True), num_bins=num_bins, equal_size_bins=True), expected)


@given(BINARY, st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(pairs, num_bins, equal_size_bins, random) -> None:
    shuffled = random.sample(pairs, len(pairs))
    one, other = (
        calibration_curve(*zip(*x, strict=True), num_bins=num_bins, equal_size_bins=equal_size_bins)
        for x in (pairs, shuffled)
    )
    assert_curves(one, other)


@given(BINARY, st.integers(1, 40), st.booleans())
def test_weights_sum_to_one_and_the_bins_average_to_the_whole(pairs, num_bins: int, equal_size_bins: bool) -> None:
    p, y = np.array(pairs).T
    probability, frequency, weights = calibration_curve(p, y, num_bins, equal_size_bins=equal_size_bins)
    assert probability.shape == frequency.shape == weights.shape == (num_bins,)
    assert_array_equal(np.isnan(probability), weights == 0)
    assert_array_equal(np.isnan(frequency), weights == 0)
    sums = [np.nansum(x) for x in (weights, weights * probability, weights * frequency)]
    assert_allclose(sums, [1.0, p.mean(), y.mean()], rtol=1e-12, atol=1e-12)


@given(BINARY, st.integers(1, 40))
def test_equal_size_bins_differ_by_at_most_one_prediction(pairs: list[tuple[float, int]], num_bins: int) -> None:
    _, _, weights = calibration_curve(*zip(*pairs, strict=True), num_bins=num_bins, equal_size_bins=True)
    counts = np.rint(weights * len(pairs))
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("equal_size_bins", [False, True])
def test_agrees_with_sklearn(equal_size_bins: bool) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(
        0.4, 0.8, size=300
    )  # no ties, 300 = 10 * 30: the quantiles of scikit-learn fall between the same ranks
    y = rng.random(300) < p
    frequency, probability = sklearn_curve(y, p, n_bins=10, strategy="quantile" if equal_size_bins else "uniform")
    actual = calibration_curve(p, y, 10, equal_size_bins=equal_size_bins)
    assert_curves(actual[:2], (probability, frequency))


def test_bins_are_open_below_and_closed_above() -> None:
    p = [0.0, 0.1, 0.3, 0.6, 0.7, 1.0]
    _, _, weights = calibration_curve(p, [0] * 6, 10)
    assert_array_equal(np.rint(6 * weights), [2, 0, 1, 0, 0, 1, 1, 0, 0, 1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tenths_are_in_the_bin_they_close_in_every_precision(dtype: type) -> None:
    p = (np.arange(1, 11) / 10).astype(dtype)
    assert_array_equal(calibration_curve(p, [0] * 10, 10)[2], [0.1] * 10)


def test_certain_predictions() -> None:
    one_hot = np.eye(3)
    probability, frequency, weights = calibration_curve(one_hot, [0, 1, 1], 4)
    assert_allclose([probability[-1], frequency[-1], weights[-1]], [1, 2 / 3, 1])
    probability, frequency, weights = calibration_curve(one_hot, [0, 1, 1], 4, top_class_only=False)
    assert_allclose([probability[0], frequency[0], weights[0]], [0, 1 / 6, 2 / 3])
    assert_allclose([probability[-1], frequency[-1], weights[-1]], [1, 2 / 3, 1 / 3])


def test_a_saturated_network_fills_every_equal_size_bin_alike() -> None:
    probability, frequency, weights = calibration_curve(np.ones(8), [1, 1, 1, 0, 1, 1, 1, 0], 4, equal_size_bins=True)
    assert_array_equal(probability, [1.0] * 4)
    assert_array_equal(frequency, [0.75] * 4)
    assert_array_equal(weights, [0.25] * 4)


def test_one_class_is_always_right() -> None:
    curve = calibration_curve(np.ones((5, 1)), np.zeros(5, int), 2)
    assert_array_equal(curve, [[np.nan, 1], [np.nan, 1], [0, 1]])


def test_two_equal_classes_predict_the_first() -> None:
    assert calibration_curve([[0.5, 0.5], [0.5, 0.5]], [0, 0], 1)[1] == 1
    assert calibration_curve([[0.5, 0.5], [0.5, 0.5]], [1, 1], 1)[1] == 0


def test_min_p_keeps_its_own_value_and_the_weights_a_whole() -> None:
    probability, frequency, weights = calibration_curve([0.1, 0.4, 0.8], [1, 1, 0], 2, min_p=0.4)
    assert_allclose((probability, frequency, weights), ([0.4, 0.8], [1, 0], [0.5, 0.5]))


@pytest.mark.parametrize("top_class_only", [True, False])
def test_targets_may_be_one_hot_floats_or_tensors(top_class_only: bool) -> None:
    probabilities, labels = softmax_batch(50, 3)
    expected = calibration_curve(probabilities, labels, 5, top_class_only)
    for targets in (np.eye(3)[labels], np.eye(3, dtype=bool)[labels], labels.astype(float), labels.tolist()):
        assert_array_equal(calibration_curve(probabilities, targets, 5, top_class_only), expected)
    tensors = torch.from_numpy(probabilities), torch.from_numpy(labels)
    assert_array_equal(calibration_curve(*tensors, 5, top_class_only), expected)


def test_rounding_error_above_one_is_not_an_error() -> None:
    p = np.array([1 + 2e-7, -1e-8], np.float32)
    assert_array_equal(calibration_curve(p, [1, 0], 2)[0], [0, 1])


def test_the_arguments_are_left_alone() -> None:
    probabilities, labels = softmax_batch(20, 3)
    before = probabilities.copy(), labels.copy()
    calibration_curve(probabilities, labels, 5, equal_size_bins=True)
    assert_array_equal(probabilities, before[0])
    assert_array_equal(labels, before[1])


GOOD = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("probabilities", "targets", "options", "message"),
    [
        (GOOD, [0, 1, 0], {"num_bins": 0}, "num_bins must be at least 1; got 0"),
        (GOOD, [0, 1], {}, r"must have shape \(3,\) or \(3, 2\); got \(2,\)"),
        (GOOD, np.zeros((3, 3)), {}, r"must have shape \(3,\) or \(3, 2\); got \(3, 3\)"),
        ([0.5, 0.5], np.eye(2), {}, r"must have shape \(2,\); got \(2, 2\)"),
        (0.5, 1, {}, r"shape \(N,\) or \(N, C\)"),
        (np.zeros((2, 3, 4)), [0, 1], {}, r"got \(2, 3, 4\)"),
        (np.zeros((2, 0)), [0, 1], {}, "C >= 1"),
        ([0.5, 1.1], [0, 1], {}, r"in \[0, 1\]; 1 are not, the first is 1.1"),
        ([-0.1, 0.5], [0, 1], {}, r"in \[0, 1\].*-0.1"),
        ([0.5, math.nan], [0, 1], {}, r"in \[0, 1\].*nan"),
        ([0.5, math.inf], [0, 1], {}, r"in \[0, 1\].*inf"),
        (GOOD, [0, 1, 2], {}, "labels from 0 to 1; got 2"),
        (GOOD, [0, -1, 1], {}, "labels from 0 to 1; got -1"),
        (GOOD, [0, 0.5, 1], {}, "labels from 0 to 1; got 0.5"),
        (GOOD, [0, math.nan, 1], {}, "labels from 0 to 1; got nan"),
        ([0.5, 0.5], [0, 2], {}, "labels from 0 to 1; got 2"),
        (GOOD, np.ones((3, 2)), {}, "one-hot"),
        (GOOD, np.full((3, 2), 0.5), {}, "one-hot"),
        (GOOD, [0, 1, 0], {"min_p": 0.6}, "no prediction is left: 3 came.*min_p = 0.6"),
        (np.zeros((0, 2)), np.zeros(0, int), {}, "no prediction is left: 0 came"),
    ],
)
def test_errors_say_what_came(probabilities, targets, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_curve(probabilities, targets, **{"num_bins": 5, **options})


@given(BINARY, st.integers(1, 12), st.booleans())
def test_ece_is_the_loop_over_used_bins(pairs, num_bins: int, equal_size_bins: bool) -> None:
    curve = calibration_curve(*zip(*pairs, strict=True), num_bins=num_bins, equal_size_bins=equal_size_bins)
    expected = sum(w * abs(p - f) for p, f, w in zip(*curve, strict=True) if w > 0)
    actual = expected_calibration_error(*curve)
    assert isinstance(actual, float)
    assert actual == pytest.approx(expected, abs=1e-12)
    assert 0 <= actual <= 1


def test_ece_of_a_calibrated_forecast_goes_to_zero() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    calibrated = rng.random(p.size) < p
    # 10 bins of 20,000: |p - f| has mean below sqrt(0.25 / 20000) = 0.0035
    assert expected_calibration_error(*calibration_curve(p, calibrated, 10)) < 0.005
    overconfident = rng.random(p.size) < p**2  # E[p - p^2] = 1/6
    assert expected_calibration_error(*calibration_curve(p, overconfident, 10)) == pytest.approx(1 / 6, abs=0.005)


def test_ece_of_equal_confidences_is_their_gap() -> None:
    p = np.full((4, 2), [0.9, 0.1])
    for equal_size_bins in (False, True):
        curve = calibration_curve(p, [0, 0, 1, 0], 3, equal_size_bins=equal_size_bins)
        assert expected_calibration_error(*curve) == pytest.approx(0.15)


def test_ece_refuses_shapes_that_differ() -> None:
    with pytest.raises(ValueError, match=r"must have one shape; got \(2,\), \(1,\), \(2,\)"):
        expected_calibration_error([0.1, 0.2], [0.1], [0.5, 0.5])
