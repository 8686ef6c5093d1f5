"""Metrics of lognormal mixtures against scipy, torch.distributions, quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import lognorm

from bnn import metrics
from bnn.metrics import lognormal_crps, lognormal_interval, lognormal_moments, lognormal_nll
from bnn.metrics.lognormal import LARGEST


def case(draws: int = 5, rows: int = 7, targets: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (draws, rows, targets)
    return rng.normal(1, 0.7, shape), rng.uniform(0.1, 0.9, shape), rng.lognormal(1, 0.8, shape[1:])


def test_moments_are_those_of_the_mixture() -> None:
    m, s, _ = case()
    each = lognorm(s=s, scale=np.exp(m))
    found = lognormal_moments(m, s)
    assert_allclose(found.mean, each.mean().mean(0))
    assert_allclose(found.aleatoric, np.sqrt(each.var().mean(0)))
    assert_allclose(found.epistemic, each.mean().std(0))
    second = (each.var() + each.mean() ** 2).mean(0)
    assert_allclose(found.aleatoric**2 + found.epistemic**2, second - found.mean**2)  # the variance of the mixture


def test_nll_is_a_density_of_the_target_itself() -> None:
    m, s, y = case()
    one = torch.distributions.LogNormal(torch.tensor(m), torch.tensor(s)).log_prob(torch.tensor(y)).sum(-1)  # (K, N)
    assert lognormal_nll(m, s, y) == pytest.approx(float(-(one.logsumexp(0) - math.log(len(m))).mean()))


def test_intervals_are_quantiles_of_the_mixture() -> None:
    m, s, _ = case()
    low, high = lognormal_interval(m, s, 0.8)
    assert (low > 0).all()
    for end, probability in ((low, 0.1), (high, 0.9)):
        assert_allclose(lognorm(s=s, scale=np.exp(m)).cdf(end).mean(0), probability, atol=1e-9)


def test_crps_is_the_integral() -> None:
    m, s, _ = (one[:, :1, :1] for one in (*case()[:2], np.zeros((5, 1, 1))))
    each = lognorm(s=s[:, 0, 0], scale=np.exp(m[:, 0, 0]))
    for y in (0.2, 2.0, 9.0):
        left, _ = quad(lambda x: each.cdf(x).mean() ** 2, 0, y, limit=200)
        right, _ = quad(lambda x: (1 - each.cdf(x).mean()) ** 2, y, 200, limit=400, points=[y + 1, y + 10])
        assert lognormal_crps(m, s, [[y]]) == pytest.approx(left + right, rel=1e-6)


def test_crps_against_monte_carlo() -> None:
    """Half a million samples of each; tolerance: four standard errors."""
    m, s, y = (one[..., :3, :1] for one in case())
    rng = np.random.default_rng(1)
    n = 500_000

    def samples() -> np.ndarray:
        which = rng.integers(len(m), size=n)
        return np.exp(m[which] + s[which] * rng.normal(size=(n, *m.shape[1:])))

    one, other = samples(), samples()
    scores = np.abs(one - y) - 0.5 * np.abs(one - other)
    wanted, error = scores.mean(0).mean(), scores.mean((1, 2)).std() / math.sqrt(n)
    assert abs(lognormal_crps(m, s, y) - wanted) < 4 * error


def test_a_narrow_lognormal_is_a_gaussian() -> None:
    """With sd s of log y small, y is N(e^m, (s e^m)^2) up to a share s."""
    rng = np.random.default_rng(2)
    m, y = np.full((1, 50), 3.0), np.exp(3 + 1e-4 * rng.normal(size=50))
    sd = 1e-4 * math.exp(3)
    assert lognormal_crps(m, 1e-4, y) == pytest.approx(metrics.mixture_crps(np.exp(m), sd, y), rel=1e-3)
    assert lognormal_nll(m, 1e-4, y) == pytest.approx(metrics.mixture_nll(np.exp(m), sd, y), rel=1e-3)


def test_wild_sds_stay_finite() -> None:
    m, s = np.array([[0.0], [300.0], [-2.0]]), np.array([[200.0], [1.0], [0.5]])
    mean, aleatoric, epistemic = lognormal_moments(m, s)
    assert mean[0] == pytest.approx(2 * LARGEST / 3)
    assert np.isfinite([mean, aleatoric, epistemic, np.square(aleatoric)]).all()
    assert np.isfinite(lognormal_crps(m, s, [1.0]))
    assert lognormal_interval(m, s, 0.9)[1][0] == LARGEST
    assert lognormal_nll(m, s, [math.e]) == pytest.approx(metrics.mixture_nll(m, s, [1.0]) + 1)


def test_all_metrics_at_once_on_a_log_scale() -> None:
    m, s, y = case(rows=60)
    moments = lognormal_moments(m, s)
    sd = np.hypot(moments.aleatoric, moments.epistemic)
    found = metrics.regression_metrics(moments.mean, sd, y, draws=(m, s), scale="log", levels=[0.8], resamples=20)
    low, high = lognormal_interval(m, s, 0.8)
    assert found["rmse"].value == pytest.approx(np.sqrt(np.mean((moments.mean - y) ** 2)))
    assert found["nll"].value == lognormal_nll(m, s, y)
    assert found["crps"].value == lognormal_crps(m, s, y)
    assert found["coverage_80"].value == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert found["sharpness_80"].value == pytest.approx(np.mean(high - low))


def test_mistakes() -> None:
    m, s, y = case()
    with pytest.raises(ValueError, match=r"targets on a log scale must be above 0; 1 of 14 are not"):
        lognormal_nll(m, s, np.where(np.arange(14).reshape(7, 2) == 3, 0.0, y))
    with pytest.raises(ValueError, match=r"scale='log' needs draws"):
        metrics.regression_metrics(y, 1.0, y, scale="log")
    with pytest.raises(ValueError, match=r"unknown scale 'logs'"):
        metrics.regression_metrics(y, 1.0, y, draws=(m, s), scale="logs")
