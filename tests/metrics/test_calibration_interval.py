"""Intervals of calibration errors: their bins against the metrics, known cases, and coverage by simulation."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from metric_inputs import CASES, every_case, random_case
from numpy.testing import assert_allclose
from scipy.stats import norm

from bnn import metrics
from bnn.metrics import Interval, adaptive_ece, bootstrap, classification_metrics, classwise_ece, ece
from bnn.metrics.resampling import CHUNK, RESAMPLED, BinGaps, distributions, on_repeated_rows

ERRORS = (ece, adaptive_ece, classwise_ece)
every_error = pytest.mark.parametrize("metric", ERRORS, ids=lambda metric: metric.__name__)


def gaps_of(metric, *arrays, **options) -> BinGaps:
    gaps = RESAMPLED[metric].make(*arrays, **options)
    assert isinstance(gaps, BinGaps)
    return gaps


@every_case
@every_error
def test_the_gaps_sum_to_the_error(metric, probs: np.ndarray, labels: np.ndarray) -> None:
    gaps = gaps_of(metric, probs, labels, bins=7).of(np.ones((1, len(labels))))
    assert np.abs(gaps).sum() == pytest.approx(metric(probs, labels, bins=7), rel=1e-11, abs=1e-13)


@every_case
@pytest.mark.parametrize("metric", [ece, classwise_ece], ids=["ece", "classwise_ece"])  # bins that stay where they are
def test_gaps_by_counts_or_repeated_rows(metric, probs: np.ndarray, labels: np.ndarray) -> None:
    gaps = gaps_of(metric, probs, labels, bins=7)
    slow = on_repeated_rows(partial(metric, bins=7), [probs, labels], [0, 0])
    both = {"fast": lambda counts: np.abs(gaps.of(counts)).sum(axis=1), "slow": slow}
    drawn = distributions(both, [len(labels)], 8, seed=3)
    assert_allclose(drawn["fast"], drawn["slow"], rtol=1e-11, atol=1e-13)


@every_case
def test_the_value_is_inside(probs: np.ndarray, labels: np.ndarray) -> None:
    for seed in range(3):
        found = classification_metrics(probs, labels, resamples=20, seed=seed)
        for metric in ERRORS:
            one = found[metric.__name__]
            assert 0 <= one.low <= one.value <= one.high <= 1
            assert one == bootstrap(metric, probs, labels, resamples=20, seed=seed)


def test_one_far_gap_has_the_interval_of_a_mean() -> None:
    """One bin, far from calibrated: the error is |confidence - accuracy|, and its interval that of the accuracy."""
    right = np.arange(2000) % 10 < 6
    found = bootstrap(partial(ece, bins=1), np.tile([0.9, 0.1], (2000, 1)), 1 - right, resamples=4000)
    half = norm.ppf(0.975) * math.sqrt(0.6 * 0.4 / 2000)
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == pytest.approx((0.3 - half, 0.3 + half), abs=0.1 * half)


def test_no_gap_by_luck_is_no_certainty() -> None:
    found = bootstrap(partial(ece, bins=1), np.tile([0.75, 0.25], (400, 1)), np.arange(400) % 4 == 0, resamples=4000)
    half = norm.ppf(0.975) * math.sqrt(0.75 * 0.25 / 400)
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(half, rel=0.1)


def test_without_noise_there_is_no_width() -> None:
    assert bootstrap(ece, *CASES["sure and right"]) == Interval(0.0, 0.0, 0.0)
    wrong = bootstrap(ece, *CASES["sure and wrong"])
    assert wrong.value == wrong.high == 1.0


def test_seeds_chunks_and_levels() -> None:
    n = CHUNK // 8
    confidence = np.linspace(0.5, 1.0, n)
    many = np.stack([confidence, 1 - confidence], axis=1), (np.arange(n) % 3 == 0).astype(int)
    first, same, other = (bootstrap(ece, *many, resamples=20, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    narrow, wide = (bootstrap(ece, *random_case(200, 3), level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value
    assert wide.high >= narrow.high


def test_a_function_of_ones_own_gets_percentiles() -> None:
    probs, labels = CASES["random"]
    drawn = distributions({"ece": on_repeated_rows(ece, [probs, labels], [0, 0])}, [len(labels)], 50, seed=0)["ece"]
    found = bootstrap(lambda p, y: ece(p, y), probs, labels, resamples=50)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


# ---- coverage --------------------------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    w = np.exp(z - z.max(axis=1, keepdims=True))
    return w / w.sum(axis=1, keepdims=True)


def predicted(n: int, sharpness: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of 3 classes, right at sharpness 1 and too sure above it, and labels."""
    z = 2 * rng.normal(size=(n, 3))
    labels = (rng.random(n)[:, None] > softmax(z).cumsum(axis=1)[:, :-1]).sum(axis=1)
    return softmax(sharpness * z), labels


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 2.0], ids=["calibrated", "too sure"])
def test_coverage_of_the_true_error(sharpness: float) -> None:
    """Nominal 95 %; of 40 runs, 0.8 is 4 standard errors below, and percentiles get 0 if calibrated."""
    rng, names = np.random.default_rng(0), [metric.__name__ for metric in ERRORS]
    many = predicted(200_000, sharpness, rng)
    truth = {metric.__name__: 0.0 if sharpness == 1 else metric(*many) for metric in ERRORS}
    for n in (100, 500, 2000):
        inside = dict.fromkeys(names, 0)
        for _ in range(40):
            arrays = predicted(n, sharpness, rng)
            for name in names:
                found = bootstrap(getattr(metrics, name), *arrays, resamples=200)
                inside[name] += found.low <= truth[name] <= found.high
        assert min(inside.values()) >= 0.8 * 40, (n, inside)
