"""Temperature scaling against scipy's bounded search, closed forms, and inputs without a minimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from metric_inputs import CASES, Case, batches, every_case, random_case
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from bnn.metrics import apply_temperature, nll, nll_after_temperature, temperature_scaling
from bnn.metrics.temperature import BOUNDS


def loss(log_t: float, logits: np.ndarray, labels: np.ndarray) -> float:
    return -log_softmax(logits / math.exp(log_t), axis=1)[np.arange(len(labels)), labels].mean()


def noisy(scale: float, n: int = 400, seed: int = 0) -> Case:
    """Logits whose labels are drawn at temperature `scale`."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, 5))
    labels = np.array([rng.choice(5, p=row) for row in softmax(logits / scale, axis=1)])
    return logits, labels


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0, 8.0])
def test_the_minimum_of_a_bounded_search(scale: float) -> None:
    logits, labels = noisy(scale)
    found = minimize_scalar(
        loss, (-3, 3), (math.log(0.05), math.log(20)), (logits, labels), "bounded", options={"xatol": 1e-9}
    )
    t = temperature_scaling(logits, labels)
    assert t == pytest.approx(math.exp(found.x), rel=1e-5)
    assert loss(math.log(t), logits, labels) <= found.fun + 1e-14
    assert t == pytest.approx(scale, rel=0.25)
    assert temperature_scaling(log_softmax(logits, axis=1), labels) == pytest.approx(t, rel=1e-9)
    assert temperature_scaling(2 * logits, labels) == pytest.approx(2 * t, rel=1e-9)


@settings(max_examples=50)
@given(batches())
def test_never_worse_than_a_grid_of_temperatures(case: Case) -> None:
    """Zeros and ones, ties, separable data: T is inside its bounds and no other temperature on a grid is better."""
    probs, labels = case
    logits = np.log(np.maximum(probs, np.finfo(float).tiny))
    t = temperature_scaling(logits, labels)
    assert BOUNDS[0] <= t <= BOUNDS[1] * (1 + 1e-12)
    best = min(loss(x, logits, labels) for x in np.linspace(math.log(BOUNDS[0]), math.log(BOUNDS[1]), 80))
    assert loss(math.log(t), logits, labels) <= best + 1e-9 * (1 + best)


def test_without_a_minimum_it_is_a_bound() -> None:
    separable = np.array([[2.0, 0.0], [0.0, 3.0]])
    assert temperature_scaling(separable, [0, 1]) == pytest.approx(0.05)
    assert temperature_scaling(100 * separable, [0, 1]) == pytest.approx(0.05)  # exp underflows at the bound
    assert temperature_scaling(separable, [0, 1], bounds=(0.5, 2.0)) == pytest.approx(0.5)
    assert temperature_scaling(separable, [1, 0]) == pytest.approx(20.0)
    assert temperature_scaling(separable, [0, 0]) == pytest.approx(20.0)  # wrong where it is surer
    assert temperature_scaling(1e6 * separable, [1, 0]) == pytest.approx(20.0)


def test_where_nothing_changes_it_is_1() -> None:
    assert temperature_scaling(np.zeros((4, 3)), [0, 1, 2, 0]) == 1.0
    assert temperature_scaling(np.ones((2, 1)), [0, 0]) == 1.0
    assert temperature_scaling([[0.0, -1e4]], [0]) == 1.0  # sure and right beyond float64
    assert temperature_scaling(np.zeros((4, 3)), [0, 1, 2, 0], bounds=(2.0, 3.0)) == 2.0


def test_minus_infinity_is_the_log_of_the_smallest_number() -> None:
    smallest = math.log(np.finfo(float).tiny)
    labels = [0, 0, 1]
    a = temperature_scaling([[0.0, -math.inf], [1.0, -math.inf], [0.0, -math.inf]], labels)
    b = temperature_scaling([[0.0, smallest], [0.0, smallest], [0.0, smallest]], labels)
    assert a == b == 20.0


@every_case
def test_apply(probs: np.ndarray, labels: np.ndarray) -> None:
    for t in (0.05, 0.7, 1.0, 20.0):
        scaled = apply_temperature(probs, t)
        floored = np.maximum(probs.astype(float), np.finfo(float).tiny)
        assert_allclose(scaled, softmax(np.log(floored) / t, axis=1), rtol=1e-10)
        assert math.isfinite(nll(scaled, labels))
    assert_allclose(apply_temperature(probs, 1.0), probs, rtol=1e-6, atol=1e-300)


def test_nll_after_temperature() -> None:
    logits, labels = noisy(3.0, seed=1)
    other, other_labels = noisy(3.0, seed=2)
    probs = softmax(other, axis=1)
    t = temperature_scaling(logits, labels)
    after = nll_after_temperature(probs, other_labels, softmax(logits, axis=1), labels)
    assert after == pytest.approx(loss(math.log(t), other, other_labels))
    assert after < nll(probs, other_labels) - 0.1
    tensors = (
        torch.tensor(probs),
        torch.tensor(other_labels),
        torch.tensor(softmax(logits, axis=1)),
        torch.tensor(labels),
    )
    assert nll_after_temperature(*tensors) == after


@pytest.mark.parametrize("name", list(CASES))
def test_finite_on_degenerate_validation_data(name: str) -> None:
    probs, labels = CASES[name]
    assert nll_after_temperature(probs, labels, probs, labels) <= nll(probs, labels) + 1e-6


def test_wrong_input() -> None:
    logits, labels = random_case(4, 3)
    with pytest.raises(ValueError, match="bounds must be"):
        temperature_scaling(logits, labels, bounds=(2.0, 1.0))
    with pytest.raises(ValueError, match=r"logits must have shape \(N, C\)"):
        temperature_scaling(logits[0], labels)
    with pytest.raises(ValueError, match="logits must be not NaN"):
        temperature_scaling([[math.nan, 0.0]], [0])
    with pytest.raises(ValueError, match="largest one that is finite"):
        temperature_scaling([[math.inf, 0.0]], [0])
    with pytest.raises(ValueError, match="temperature must be positive and finite; got 0"):
        apply_temperature(logits, 0)
