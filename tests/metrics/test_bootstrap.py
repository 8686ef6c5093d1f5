"""Bootstrap intervals: the fast ways against running the metric on repeated rows, and known standard errors."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from metric_inputs import CASES, every_case, random_case
from numpy.testing import assert_allclose
from scipy.stats import binom, norm

from bnn import metrics
from bnn.metrics import (
    Interval,
    accuracy,
    auroc,
    bootstrap,
    classification_metrics,
    detection_metrics,
    regression_metrics,
    rmse,
)
from bnn.metrics.resampling import CHUNK, RESAMPLED, distributions, mean_of, on_repeated_rows, resamples_of

OF_CLASSES = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc", "balanced_accuracy"]
OF_CALIBRATION = ["ece", "adaptive_ece", "classwise_ece"]  # intervals of their own: test_calibration_interval.py
OF_SCORES = ["auroc", "aupr", "fpr95"]


def same_on_all_resamples(metric, arrays, groups: list[int], resamples: int = 25, **options) -> None:
    """The statistic by counts and the metric on repeated rows, resample by resample."""
    arrays = [np.asarray(array) for array in arrays]
    sizes = [len(arrays[groups.index(group)]) for group in sorted(set(groups))]
    fast = RESAMPLED[metric].make(*arrays, **options)
    slow = on_repeated_rows(partial(metric, **options), arrays, groups)
    drawn = distributions({"fast": fast, "slow": slow}, sizes, resamples, seed=3)
    assert_allclose(drawn["fast"], drawn["slow"], rtol=1e-11, atol=1e-13)


@every_case
def test_counts_or_repeated_rows_of_classes(probs: np.ndarray, labels: np.ndarray) -> None:
    for name in [name for name in OF_CLASSES if name not in OF_CALIBRATION]:
        same_on_all_resamples(getattr(metrics, name), (probs, labels), [0, 0], resamples=8)


@pytest.mark.parametrize("name", OF_SCORES)
@pytest.mark.parametrize("high", [3, 40, 10**9], ids=["many ties", "ties", "no ties"])
def test_counts_or_repeated_rows_of_scores(name: str, high: int) -> None:
    rng = np.random.default_rng(0)
    same_on_all_resamples(getattr(metrics, name), (rng.integers(high, size=30), rng.integers(1, high, size=45)), [0, 1])


def test_counts_or_repeated_rows_of_numbers() -> None:
    m, y = np.random.default_rng(0).normal(size=(2, 30, 2))
    s = np.exp(y[::-1])
    same_on_all_resamples(rmse, (m, y), [0, 0])
    same_on_all_resamples(metrics.gaussian_nll, (m, s, y), [0, 0, 0])
    same_on_all_resamples(metrics.crps, (m, s, y), [0, 0, 0])
    same_on_all_resamples(metrics.coverage, (m, s, y), [0, 0, 0], level=0.5)
    same_on_all_resamples(metrics.sharpness, (s,), [0], level=0.5)
    same_on_all_resamples(metrics.aurc_of_hits, (m[:, 0] > 0, m[:, 1]), [0, 0])
    same_on_all_resamples(metrics.risk_area, (m[:, 0] ** 2, m[:, 1].round(1)), [0, 0], root=True)


def test_all_joined_metrics_are_tested_here() -> None:
    of_numbers = {"rmse", "gaussian_nll", "crps", "coverage", "sharpness", "aurc_of_hits", "risk_area"}
    assert {metric.__name__ for metric in RESAMPLED} == {*OF_CLASSES, *OF_SCORES, *of_numbers}


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_resamples_draw_n_of_n_rows_evenly(n: int) -> None:
    (counts,) = (np.concatenate(parts) for parts in zip(*resamples_of([n], 3000, seed=0), strict=True))
    assert counts.shape == (3000, n)
    assert (counts.sum(axis=1) == n).all()
    share = np.mean(counts == 0)  # (1 - 1/n)^n
    assert share == pytest.approx(binom(n, 1 / n).pmf(0), abs=4 / math.sqrt(3000 * n) + 1e-12)
    assert_allclose(counts.mean(axis=0), 1, atol=5 / math.sqrt(3000))


def test_large_sets_come_in_chunks() -> None:
    chunks = [counts.shape for (counts,) in resamples_of([CHUNK // 4], 10, seed=0)]
    assert [shape[0] for shape in chunks] == [4, 4, 2]


def test_the_interval_of_a_mean_is_that_of_the_central_limit_theorem() -> None:
    probs, labels = random_case(2000, 3)
    found = bootstrap(accuracy, probs, labels, resamples=4000, level=0.9)
    half = norm.ppf(0.95) * math.sqrt(found.value * (1 - found.value) / 2000)
    assert found.value == accuracy(probs, labels)
    assert found.low == pytest.approx(found.value - half, abs=0.1 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.1 * half)


def test_the_interval_of_auroc_is_that_of_delong() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 400), rng.normal(1, 1, 300)
    order = (outside[:, None] > inside).astype(float)
    sd = math.sqrt(order.mean(0).var(ddof=1) / 400 + order.mean(1).var(ddof=1) / 300)
    found = bootstrap(auroc, inside, outside, resamples=2000)
    assert (found.high - found.low) / 2 == pytest.approx(norm.ppf(0.975) * sd, rel=0.1)


def test_equal_seeds_equal_intervals() -> None:
    probs, labels = random_case(100, 3)
    first, same, other = (bootstrap(metrics.ece, probs, labels, resamples=50, seed=s) for s in (1, 1, 2))
    assert first == same
    assert first.value == other.value
    assert first != other


def test_any_function_and_partial_options() -> None:
    probs, labels = random_case(80, 3)
    tensors = torch.tensor(probs), torch.tensor(labels)
    known = bootstrap(partial(metrics.nll, eps=0.3), *tensors, resamples=60)
    unknown = bootstrap(lambda p, y: metrics.nll(p, y, eps=0.3), probs, labels, resamples=60)
    assert known.value == unknown.value == metrics.nll(probs, labels, eps=0.3)
    assert (known.low, known.high) == pytest.approx((unknown.low, unknown.high), abs=1e-12)
    assert known != bootstrap(metrics.nll, probs, labels, resamples=60)


def test_groups_say_what_is_resampled_together() -> None:
    """Paired differences are constant; with rows of their own they are not."""
    a = np.random.default_rng(0).normal(size=50)
    paired = bootstrap(lambda x, y: np.mean(x) - np.mean(y), a, a + 1, resamples=50)
    apart = bootstrap(lambda x, y: np.mean(x) - np.mean(y), a, a + 1, resamples=50, groups=[0, 1])
    assert paired.high - paired.low == pytest.approx(0, abs=1e-12)
    assert apart.high - apart.low > 0.3
    swapped = bootstrap(auroc, a[:20], a + 1, resamples=50, groups=[1, 0])  # another order of drawing, no error
    assert swapped.value == auroc(a[:20], a + 1)
    assert 0.5 < swapped.low < swapped.value < swapped.high <= 1


def balanced_recall(labels: np.ndarray) -> float:
    """Undefined without both classes."""
    if len(np.unique(labels)) < 2:
        raise ValueError("one class only")
    return float(labels.mean())


def test_undefined_resamples_are_left_out_and_counted() -> None:
    labels = np.array([0, 1, 1])  # all three drawn equal: (1 + 8) / 27
    found = bootstrap(balanced_recall, labels, resamples=900)
    assert found.left_out == pytest.approx(300, abs=60)
    assert {found.low, found.high} <= {1 / 3, 2 / 3}
    assert str(found).endswith(f"({found.left_out} resamples left out)")
    same = bootstrap(lambda y: math.nan if len(set(y)) < 2 else y.mean(), labels, resamples=900)
    assert same == found


def test_undefined_everywhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="one class only"):
        bootstrap(balanced_recall, [1, 1])
    with pytest.raises(ValueError, match="undefined on the data itself"):
        bootstrap(lambda x: math.nan, [1.0])
    seen = []
    with pytest.raises(ValueError, match="undefined on all 5 resamples"):
        bootstrap(lambda x: math.nan if seen else seen.append(1) or 1.0, [1.0, 2.0], resamples=5)


def test_one_datum() -> None:
    found = bootstrap(accuracy, *CASES["one datum"], resamples=10)
    assert found == Interval(0.0, 0.0, 0.0)
    found = bootstrap(auroc, [0.0], [1.0], resamples=10)
    assert found == Interval(1.0, 1.0, 1.0)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least one array"):
        bootstrap(accuracy)
    with pytest.raises(ValueError, match=r"equally long; got \[2, 3\]"):
        bootstrap(np.dot, [1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"groups must give each of the 2 arrays one of 0, 1, ...; got \[0, 2\]"):
        bootstrap(np.dot, [1, 2], [1, 2], groups=[0, 2])
    with pytest.raises(ValueError, match="rows to resample; got shape"):
        bootstrap(np.mean, 3.0)
    with pytest.raises(ValueError, match="resamples must be an integer >= 1; got 0"):
        bootstrap(np.mean, [3.0], resamples=0)
    with pytest.raises(ValueError, match="level must be a number between"):
        bootstrap(np.mean, [3.0], level=1.0)


def test_summaries_are_the_single_metrics() -> None:
    probs, labels = CASES["ties"]
    found = classification_metrics(probs, labels, bins=10, resamples=30, seed=4, temperature=2.0)
    assert list(found) == [*OF_CLASSES, "nll_after_temperature"]
    for name in OF_CLASSES:
        metric = partial(getattr(metrics, name), **({"bins": 10} if "ece" in name else {}))
        assert found[name] == bootstrap(metric, probs, labels, resamples=30, seed=4)
    softer = metrics.apply_temperature(probs, 2.0)
    assert found["nll_after_temperature"] == bootstrap(metrics.nll, softer, labels, resamples=30, seed=4)
    scores = probs[:40, 0], probs[40:, 0]
    assert detection_metrics(*scores, resamples=30) == {
        name: bootstrap(getattr(metrics, name), *scores, resamples=30) for name in OF_SCORES
    }


def test_the_summary_of_numbers() -> None:
    m, y = np.random.default_rng(0).normal(size=(2, 30, 2))
    s = np.exp(y[::-1])
    found = regression_metrics(m, s, y, resamples=30)
    levels = ("50", "90", "95")
    assert list(found) == ["rmse", "nll", "crps", *(f"{k}_{v}" for v in levels for k in ("coverage", "sharpness"))]
    want = {"rmse": bootstrap(rmse, m, y, resamples=30), "nll": bootstrap(metrics.gaussian_nll, m, s, y, resamples=30)}
    want["crps"] = bootstrap(metrics.crps, m, s, y, resamples=30)
    want["coverage_90"] = bootstrap(partial(metrics.coverage, level=0.9), m, s, y, resamples=30)
    want["sharpness_95"] = bootstrap(metrics.sharpness, s, resamples=30)
    for name, interval in want.items():
        got = found[name]
        assert (got.value, got.low, got.high) == pytest.approx((interval.value, interval.low, interval.high), rel=1e-9)


def test_the_summary_of_draws_is_that_of_their_mixture() -> None:
    means, y = np.random.default_rng(0).normal(size=(5, 30, 2)), np.random.default_rng(1).normal(size=(30, 2))
    moments = means.mean(0), np.sqrt(0.25 + means.var(0))
    found = regression_metrics(*moments, y, draws=(means, 0.5), levels=[0.8], resamples=10)
    low, high = metrics.mixture_interval(means, 0.5, 0.8)
    assert found["nll"].value == pytest.approx(metrics.mixture_nll(means, 0.5, y))
    assert found["crps"].value == pytest.approx(metrics.mixture_crps(means, 0.5, y))
    assert found["coverage_80"].value == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert found["sharpness_80"].value == pytest.approx(np.mean(high - low))
    assert found["rmse"].value == rmse(moments[0], y)


def test_degenerate_input_gives_finite_intervals() -> None:
    for probs, labels in CASES.values():
        for found in classification_metrics(probs, labels, resamples=5).values():
            assert np.isfinite([found.value, found.low, found.high]).all()
            assert found.left_out == 0
    assert mean_of(np.ones(3))(np.ones((2, 3))).tolist() == [1.0, 1.0]
