"""Metrics of real numbers against scipy: densities, quantiles, and the CRPS as an integral over the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import root_mean_squared_error

from bnn import likelihoods, metrics
from bnn.metrics import (
    coverage,
    crps,
    gaussian_nll,
    interval,
    mixture_crps,
    mixture_interval,
    mixture_nll,
    rmse,
    sample_crps,
    sharpness,
)


def gaussians(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), np.exp(rng.normal(size=shape)), 2 * rng.normal(size=shape[-2:])


def crps_integral(cdf, y: float) -> float:
    """int (F(x) - [x >= y])^2 dx, the definition."""
    left, _ = quad(lambda x: cdf(x) ** 2, -60, y, limit=200, points=[-5, 0])
    right, _ = quad(lambda x: (1 - cdf(x)) ** 2, y, 60, limit=200, points=[0, 5])
    return left + right


def test_scipy_agrees() -> None:
    m, s, y = gaussians(40, 3)
    y = gaussians(40, 3, seed=1)[2]
    assert rmse(m, y) == pytest.approx(root_mean_squared_error(y.ravel(), m.ravel()))
    assert gaussian_nll(m, s, y) == pytest.approx(-norm(m, s).logpdf(y).sum(1).mean())
    low, high = norm(m, s).interval(0.8)
    assert_allclose(interval(m, s, 0.8), (low, high), rtol=1e-12)
    assert coverage(m, s, y, 0.8) == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert sharpness(s, 0.8) == pytest.approx(np.mean(high - low))


@settings(max_examples=20)
@given(st.floats(-3, 3), st.floats(0.2, 3), st.floats(-4, 4))
def test_crps_is_the_integral(m: float, s: float, y: float) -> None:
    assert crps([m], [s], [y]) == pytest.approx(crps_integral(lambda x: norm.cdf(x, m, s), y), abs=1e-6)


def test_crps_at_the_ends() -> None:
    assert crps([0.0], [1e-12], [2.0]) == pytest.approx(2.0)  # a point: the absolute error
    assert crps([0.0], [1.0], [1e6]) == pytest.approx(1e6 - 1 / math.sqrt(math.pi))
    assert crps([0.0], [1.0], [0.0]) == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi))


def test_the_nll_is_that_of_the_likelihoods() -> None:
    m, s, y = (torch.tensor(a) for a in gaussians(20, 2))
    raw = torch.cat([m, torch.log(torch.expm1(s))], dim=1)
    want = likelihoods.HeteroscedasticGaussian(min_sd=1e-9)(raw, y).mean().item()
    assert gaussian_nll(m, s, y) == pytest.approx(want)


def test_mixture_by_scipy() -> None:
    m, s, y = gaussians(4, 6, 2)
    density = norm(m, s).pdf(y).prod(axis=2).mean(axis=0)
    assert mixture_nll(m, s, y) == pytest.approx(-np.log(density).mean())
    integrals = []
    for n, d in np.ndindex(y.shape):
        component = norm(m[:, n, d], s[:, n, d])
        integrals.append(crps_integral(lambda x, c=component: c.cdf(x).mean(), y[n, d]))
    assert mixture_crps(m, s, y) == pytest.approx(np.mean(integrals), abs=1e-5)
    for end, probability in zip(mixture_interval(m, s, 0.9), (0.05, 0.95), strict=True):
        assert_allclose(norm(m, s).cdf(end).mean(axis=0), probability, rtol=1e-9)


def test_a_mixture_of_one_or_of_equals_is_a_gaussian() -> None:
    m, s, y = gaussians(30, 2)
    for k in (1, 3):
        many = np.stack([m] * k), np.stack([s] * k)
        assert mixture_nll(*many, y) == pytest.approx(gaussian_nll(m, s, y))
        assert mixture_crps(*many, y) == pytest.approx(crps(m, s, y))
        assert_allclose(mixture_interval(*many, 0.7), interval(m, s, 0.7))


def test_a_target_far_from_all_components_has_a_finite_nll() -> None:
    """exp underflows in every component; the nearest one decides."""
    want = -norm(1.0, 1.0).logpdf(1e4) + math.log(2)
    assert mixture_nll([[0.0], [1.0]], 1.0, [1e4]) == pytest.approx(want)


def test_crps_of_samples_by_all_pairs() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (7, 5, 2)).astype(float), rng.normal(size=(5, 2))
    want = np.abs(x - y).mean(0) - 0.5 * np.abs(x[:, None] - x[None]).mean((0, 1))
    assert sample_crps(x, y) == pytest.approx(want.mean())
    assert sample_crps(x[:1], y) == pytest.approx(np.abs(x[0] - y).mean())


def test_one_datum_one_output_and_one_sd_for_all() -> None:
    assert rmse([1.0], [3.0]) == 2.0
    assert coverage([0.0], 1.0, [0.0]) == 1.0
    m, _, y = gaussians(8, 2)
    assert gaussian_nll(m, 0.5, y) == gaussian_nll(m, np.full_like(m, 0.5), y)
    assert gaussian_nll(m[:, 0], torch.tensor(0.5), y[:, 0]) == pytest.approx(
        -norm(m[:, 0], 0.5).logpdf(y[:, 0]).mean()
    )
    assert coverage([0.0], [1.0], [interval([0.0], [1.0], 0.5)[1][0]], 0.5) == 1.0  # ends are inside


WRONG = {
    r"nothing is broadcast; got mean \(2,\), sd \(2,\), targets \(2, 1\)": ([0.0, 1.0], [1.0, 1.0], [[0.0], [1.0]]),
    "sd must be positive; 1 are not, the least is 0": ([0.0, 1.0], [1.0, 0.0], [0.0, 1.0]),
    "targets must be finite; 1 of 2": ([0.0, 1.0], 1.0, [0.0, math.nan]),
    "mean must not be empty": ([], [], []),
    "mean must have shape": (0.0, 1.0, 0.0),
}


@pytest.mark.parametrize("metric", [gaussian_nll, crps, coverage])
@pytest.mark.parametrize("message", list(WRONG))
def test_wrong_input(metric, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*WRONG[message])


def test_wrong_levels_and_draws() -> None:
    with pytest.raises(ValueError, match="level must be a number between 0 and 1, both excluded; got 95"):
        interval([0.0], [1.0], 95)
    with pytest.raises(ValueError, match=r"targets for means of shape \(2, 3\) must have shape \(3,\); got \(2,\)"):
        mixture_nll(np.zeros((2, 3)), 1.0, np.zeros(2))
    with pytest.raises(ValueError, match="K draws first"):
        mixture_nll(np.zeros(3), 1.0, np.zeros(3))
    with pytest.raises(ValueError, match=r"got mean \(2,\), targets \(2, 1\)"):
        metrics.rmse([0.0, 0.0], [[0.0], [0.0]])
