"""Metrics where some of several targets are missing: NaN is left out, and no known target is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnn import metrics
from bnn.metrics.resampling import mean_of

RNG = np.random.default_rng(0)
M, S = RNG.normal(size=(4, 50, 2)), RNG.uniform(0.5, 1.5, size=(4, 50, 2))
Y = RNG.normal(size=(50, 2))
HOLES = Y.copy()
HOLES[:20, 1] = np.nan  # of 20 data the second is missing, of another one both
HOLES[49] = np.nan
ONE, BOTH = slice(0, 20), slice(20, 49)


def by_hand(function: Callable[[slice, slice], float]) -> float:
    """A metric of the data with both targets, and of those with the first alone, in proportion."""
    parts = [(function(ONE, slice(0, 1)), 20), (function(BOTH, slice(0, 2)), 29)]
    return sum(value * n for value, n in parts) / 49


@pytest.mark.parametrize("name", ["nll", "crps", "coverage_90", "mse"])
def test_data_count_with_the_targets_they_have(name: str) -> None:
    mean, sd = M.mean(0), np.hypot(np.sqrt(np.square(S).mean(0)), M.std(0))
    found = metrics.regression_metrics(mean, sd, HOLES, draws=(M, S), resamples=20)

    def part(rows: slice, targets: slice) -> float:
        chosen = (mean[rows, targets], sd[rows, targets], Y[rows, targets])
        draws = M[:, rows, targets], S[:, rows, targets]
        all_ = metrics.regression_metrics(*chosen, draws=draws, resamples=1)
        return all_["rmse"].value ** 2 if name == "mse" else all_[name].value

    value = found["rmse"].value ** 2 if name == "mse" else found[name].value
    assert value == pytest.approx(by_hand(part))


def test_functions_leave_out_the_same() -> None:
    known = HOLES[:49, :1]
    only_first = np.stack([HOLES[:, 0], np.full(50, np.nan)], 1)
    m, s = M[0], S[0]
    assert metrics.rmse(m, only_first) == pytest.approx(metrics.rmse(m[:49, :1], known))
    assert metrics.gaussian_nll(m, s, only_first) == pytest.approx(metrics.gaussian_nll(m[:49, :1], s[:49, :1], known))
    assert metrics.crps(m, s, only_first) == pytest.approx(metrics.crps(m[:49, :1], s[:49, :1], known))
    assert metrics.coverage(m, s, only_first) == pytest.approx(metrics.coverage(m[:49, :1], s[:49, :1], known))
    first = M[:, :49, :1], S[:, :49, :1], known
    assert metrics.mixture_nll(M, S, only_first) == pytest.approx(metrics.mixture_nll(*first))
    assert metrics.mixture_crps(M, S, only_first) == pytest.approx(metrics.mixture_crps(*first))
    assert metrics.sample_crps(M, only_first) == pytest.approx(metrics.sample_crps(M[:, :49, :1], known))
    positive = np.exp(only_first)
    assert metrics.lognormal_nll(M, S, positive) == pytest.approx(metrics.lognormal_nll(*first[:2], np.exp(known)))
    assert metrics.lognormal_crps(M, S, positive) == pytest.approx(metrics.lognormal_crps(*first[:2], np.exp(known)))


def test_resamples_weigh_the_data_that_count() -> None:
    counts = np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 0.0], [2.0, 0.0, 1.0]])
    assert_allclose(mean_of(np.array([1.0, np.nan, 4.0]))(counts), [2.5, np.nan, 2.0])


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_a_single_target_must_be_known(shape: tuple[int, ...]) -> None:
    y = Y[:, 0].reshape(shape).copy()
    y[3] = np.nan
    with pytest.raises(ValueError, match=r"targets must be finite; 1 of 50 are not, the first is nan"):
        metrics.rmse(np.zeros(shape), y)
    with pytest.raises(ValueError, match=r"targets must not be missing in all data"):
        metrics.rmse(np.zeros((50, 2)), np.full((50, 2), np.nan))
    infinite = np.where(np.isnan(HOLES), np.inf, HOLES)
    with pytest.raises(ValueError, match=r"targets must be finite; 22 of 100"):
        metrics.rmse(np.zeros((50, 2)), infinite)
