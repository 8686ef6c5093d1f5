"""Metrics of class probabilities against loops from the definition, scikit-learn and torchmetrics where it is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from metric_inputs import CASES, Case, batches, every_case, random_case
from numpy.testing import assert_allclose
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from bnn.metrics import accuracy, adaptive_ece, brier, classwise_ece, ece, nll

METRICS = [accuracy, nll, brier, ece, adaptive_ece, classwise_ece]


def gap(pairs: list[tuple[float, float]]) -> float:
    """|sum of p - sum of y| of one bin."""
    return abs(math.fsum(p for p, _ in pairs) - math.fsum(y for _, y in pairs))


def width_error(pairs: list[tuple[float, float]], bins: int, dtype: type = float) -> float:
    """Equal-width calibration error from the definition."""
    edges = [float(dtype(b / bins)) for b in range(bins + 1)]
    total = 0.0
    for b in range(bins):
        total += gap([(p, y) for p, y in pairs if edges[b] < p <= edges[b + 1] or (b == 0 and p == 0)])
    return total / len(pairs)


def size_error(pairs: list[tuple[float, float]], bins: int) -> float:
    """Equal-size calibration error from the definition; equal p share their mean y."""
    mean = {p: np.mean([y for q, y in pairs if q == p]) for p, _ in pairs}
    ordered = sorted(p for p, _ in pairs)
    n = len(ordered)
    return math.fsum(gap([(p, mean[p]) for i, p in enumerate(ordered) if i * bins // n == b]) for b in range(bins)) / n


def top(probs: np.ndarray, labels: np.ndarray) -> list[tuple[float, float]]:
    return [(max(row), float(row.index(max(row)) == y)) for row, y in zip(probs.tolist(), labels.tolist(), strict=True)]


def check_all(probs: np.ndarray, labels: np.ndarray) -> None:
    rows, kind = list(zip(probs.tolist(), labels.tolist(), strict=True)), probs.dtype.type
    assert accuracy(probs, labels) == pytest.approx(np.mean([y for _, y in top(probs, labels)]), abs=1e-14)
    assert nll(probs, labels) == pytest.approx(
        np.mean([-math.log(row[y]) if row[y] else 1022 * math.log(2) for row, y in rows])  # 2^-1022 is the smallest
    )
    want = np.mean([sum((p - (c == y)) ** 2 for c, p in enumerate(row)) for row, y in rows])
    assert brier(probs, labels) == pytest.approx(want, abs=1e-14)
    for bins in (1, 5, 15):
        assert ece(probs, labels, bins) == pytest.approx(width_error(top(probs, labels), bins, kind), abs=1e-13)
        assert adaptive_ece(probs, labels, bins) == pytest.approx(size_error(top(probs, labels), bins), abs=1e-13)
        events = [[(row[c], float(y == c)) for row, y in rows] for c in range(probs.shape[1])]
        want = np.mean([width_error(pairs, bins, kind) for pairs in events])
        assert classwise_ece(probs, labels, bins) == pytest.approx(want, abs=1e-13)


@every_case
def test_definitions(probs: np.ndarray, labels: np.ndarray) -> None:
    check_all(probs, labels)


@given(batches())
def test_definitions_on_whole_numbers(case: Case) -> None:
    check_all(*case)


@every_case
def test_the_order_of_the_data_does_not_matter(probs: np.ndarray, labels: np.ndarray) -> None:
    for metric in METRICS:
        shuffled = np.random.default_rng(0).permutation(len(labels))
        assert metric(probs[shuffled], labels[shuffled]) == pytest.approx(metric(probs, labels), abs=1e-13)


@pytest.mark.parametrize("name", ["random", "many", "one label"])
def test_sklearn_and_torchmetrics_agree(name: str) -> None:
    probs, labels = CASES[name]
    p, y, classes = torch.tensor(probs), torch.tensor(labels), probs.shape[1]
    assert accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    assert accuracy(probs, labels) == pytest.approx(multiclass_accuracy(p, y, classes, average="micro").item())
    assert nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=range(classes)))
    assert ece(probs, labels) == pytest.approx(multiclass_calibration_error(p, y, classes, 15).item(), abs=1e-6)


def test_confidence_one_is_in_the_last_bin_and_not_in_one_of_its_own() -> None:
    """torchmetrics opens a bin for p = 1: the two data of p = 1 and the one of p = 0.96 are all in (14/15, 1]."""
    probs, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.96, 0.04]]), torch.tensor([0, 1, 0])
    assert ece(probs, labels) == pytest.approx(2.96 / 3 - 2 / 3, abs=1e-7)
    theirs = multiclass_calibration_error(probs, labels, num_classes=2, n_bins=15).item()
    assert theirs == pytest.approx(2 / 3 * 0.5 + 1 / 3 * 0.04)  # should be as above; see whether ours is still needed
    nearly = torch.tensor([[1 - 1e-6, 1e-6], [1 - 1e-6, 1e-6], [0.96, 0.04]])
    assert multiclass_calibration_error(nearly, labels, 2, 15).item() == pytest.approx(2.96 / 3 - 2 / 3, abs=1e-5)


def test_probability_0_of_the_truth_costs_the_floor_and_no_infinity() -> None:
    probs, labels = [[1.0, 0.0], [0.5, 0.5]], [1, 0]
    assert nll(probs, labels) == pytest.approx((1022 * math.log(2) + math.log(2)) / 2)
    assert nll(probs, labels, eps=1e-3) == pytest.approx((math.log(1000) + math.log(2)) / 2)
    assert nll(np.float32(probs), labels) == nll(probs, labels)


def test_perfect_and_hopeless() -> None:
    right, wrong = CASES["sure and right"], CASES["sure and wrong"]
    assert [metric(*right) for metric in METRICS] == [1, 0, 0, 0, 0, 0]
    assert [accuracy(*wrong), brier(*wrong), ece(*wrong), adaptive_ece(*wrong)] == [0, 2, 1, 1]


def test_a_class_that_never_occurs_counts() -> None:
    probs = np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1]])
    assert classwise_ece(probs, [0, 0]) == pytest.approx((0.5 + 0.4 + 0.1) / 3)


def test_float32_sits_in_the_bin_its_decimal_names() -> None:
    """0.6 in float32 is above 9/15 in float64."""
    probs = np.array([[0.6, 0.4], [0.55, 0.45]])
    assert ece(probs.astype(np.float32), [0, 1]) == pytest.approx(ece(probs, [0, 1]), abs=1e-7)
    assert ece(probs, [0, 1]) == pytest.approx(0.15 / 2)


@pytest.mark.parametrize("metric", METRICS)
def test_tensors_lists_and_half_precision(metric) -> None:
    probs, labels = random_case(50, 4)
    value = metric(probs, labels)
    assert type(value) is float
    assert metric(torch.tensor(probs, requires_grad=True), torch.tensor(labels)) == value
    assert metric(probs.tolist(), labels.astype(float).tolist()) == value
    half = torch.tensor(probs).bfloat16()
    assert_allclose(metric(half, labels), metric(half.double() / half.double().sum(1, keepdim=True), labels), atol=0.1)


WRONG = {
    "shape .N, C.; got .2,.; for the probability p": ([0.2, 0.8], [0, 1]),
    "not be empty": (np.zeros((0, 3)), np.zeros(0, int)),
    "finite; 1 of 4 are not, the first is nan": ([[math.nan, 1.0], [0.5, 0.5]], [0, 1]),
    "sum to 1; 1 do not, the first sums to 1.1": ([[0.5, 0.5], [0.5, 0.6]], [0, 1]),
    r"in \[0, 1\]; 2 are not, the first is 3.0: are they logits": ([[3.0, -2.0], [0.5, 0.5]], [0, 1]),
    "labels for shape .2, 2. must have shape .2,.; got .3,": ([[0.5, 0.5]] * 2, [0, 1, 1]),
    "one-hot rows use": ([[0.5, 0.5]] * 2, [[0, 1], [1, 0]]),
    "indices from 0 to 1; 1 are not, the first is 2": ([[0.5, 0.5]] * 2, [2, 0]),
    "first is -1": ([[0.5, 0.5]] * 2, [0, -1]),
    "first is 0.5": ([[0.5, 0.5]] * 2, [0.5, 1]),
    "labels must be finite": ([[0.5, 0.5]] * 2, [math.nan, 1]),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("message", list(WRONG))
def test_wrong_input(metric, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*WRONG[message])


def test_text_and_wrong_options() -> None:
    with pytest.raises(TypeError, match="real numbers; got an array of <U1"):
        accuracy([["a", "b"]], [0])
    with pytest.raises(ValueError, match="bins must be an integer >= 1; got 0"):
        ece([[1.0, 0.0]], [0], bins=0)
    with pytest.raises(ValueError, match="eps must be a number between 0 and 1"):
        nll([[1.0, 0.0]], [0], eps=0.0)
