"""The likeliest scale of noise: closed form for one draw, brute force for several."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bnn.functional.noise import LEVELS, SMALLEST, central_quantile, holding_scale, likeliest_scale, tails

ONE = torch.tensor(1.0)


def log_likelihood(residuals: Tensor, sds: Tensor, c: float) -> Tensor:
    normal = torch.distributions.Normal(torch.zeros_like(sds), c * sds)
    return (normal.log_prob(residuals).logsumexp(0) - torch.tensor(len(residuals)).log()).sum()


@pytest.mark.parametrize("varying", [False, True])
def test_of_one_draw_it_is_the_rms(varying: bool) -> None:
    torch.manual_seed(0)
    r = torch.randn(1, 200, dtype=torch.double)
    s = torch.rand(1, 200, dtype=torch.double) + 0.5
    found = likeliest_scale(r, ONE, s if varying else None)
    torch.testing.assert_close(found, (r / s if varying else r).square().mean().sqrt())


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("varying", [False, True])
def test_of_several_draws_no_scale_is_likelier(spread: float, varying: bool) -> None:
    torch.manual_seed(1)
    r = 0.3 * torch.randn(1, 50, dtype=torch.double) + spread * torch.randn(6, 50, dtype=torch.double)
    s = torch.rand(6, 50, dtype=torch.double) + 0.5 if varying else torch.ones(6, 50, dtype=torch.double)
    found = float(likeliest_scale(r, ONE, s if varying else None))
    best = float(log_likelihood(r, s, found))
    tried = torch.logspace(-3, 2, 4001, dtype=torch.double).tolist()
    scores = torch.stack([log_likelihood(r, s, c) for c in tried])
    assert best >= float(scores.max())
    assert found == pytest.approx(tried[int(scores.argmax())], rel=3e-3)


def test_a_network_without_an_error_keeps_some_noise() -> None:
    assert float(likeliest_scale(torch.zeros(3, 5), torch.tensor(20.0))) == pytest.approx(20 * SMALLEST)


def test_the_spread_of_draws_is_no_noise() -> None:
    """Targets N(0, 0.3^2), means N(0, 0.2^2): together they predict 0.3^2 if the noise is sqrt(0.3^2 - 0.2^2).

    The best noise of a single draw would be sqrt(0.3^2 + 0.2^2). 20,000 targets, 500 draws, tolerance 4 %.
    """
    generator = torch.Generator().manual_seed(0)
    target = 0.3 * torch.randn(1, 20_000, generator=generator, dtype=torch.double)
    means = 0.2 * torch.randn(500, 1, generator=generator, dtype=torch.double)
    assert float(likeliest_scale(target - means, ONE)) == pytest.approx((0.3**2 - 0.2**2) ** 0.5, rel=0.04)


# ---- tails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [2.2, 3.0, 5.0, 30.0, 200.0])
def test_bins_are_means_of_the_mixing_distribution(df: float) -> None:
    """Against integrals of 1 / g over the quantiles of the gamma distribution; the mean square is 1."""
    probabilities, scales = (np.array(part) for part in tails(df))
    gamma = stats.gamma(df / 2)
    edges = gamma.ppf(np.append(1.0, 1 - np.cumsum(probabilities)[:-1]))  # of g, the largest first
    for i, (low, high) in enumerate(zip([*edges[1:], 0.0], edges, strict=True)):
        inside, _ = integrate.quad(lambda g: gamma.pdf(g) / g, low, min(high, gamma.ppf(1 - 1e-13)), limit=200)
        assert probabilities[i] * scales[i] ** 2 == pytest.approx(inside * (df / 2 - 1), rel=1e-4)
    assert (probabilities * scales**2).sum() == pytest.approx(1.0)
    assert probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("df", [2.2, 3.0, 4.0, 8.0, 30.0])
def test_six_bins_are_nearly_student_t(df: float) -> None:
    probabilities, scales = (np.array(part) for part in tails(df))
    t = stats.t(df, scale=math.sqrt((df - 2) / df))
    values = t.ppf(np.linspace(0.005, 0.995, 199))
    mixture = (probabilities * stats.norm.cdf(values[:, None] / scales)).sum(1)
    assert np.abs(mixture - t.cdf(values)).max() < 0.0055


def test_noise_without_a_variance_has_no_bins() -> None:
    with pytest.raises(ValueError, match="df must be above 2"):
        tails(2.0)


@pytest.mark.parametrize("df", [2.2, 4.0, 30.0])
@pytest.mark.parametrize("draws", [1, 5])
def test_no_scale_is_likelier_under_heavier_tails(df: float, draws: int) -> None:
    torch.manual_seed(2)
    r = torch.distributions.StudentT(3.0).sample((1, 80)).double() + 0.3 * torch.randn(draws, 80, dtype=torch.double)
    p, c = (torch.tensor(part, dtype=torch.double).reshape(-1, 1, 1) for part in tails(df))
    normal = torch.distributions.Normal(torch.zeros_like(r), torch.ones_like(r))

    def score(scale: float) -> float:
        logs = p.log() + normal.log_prob(r / (scale * c)) - (scale * c).log()
        return float(logs.flatten(0, 1).logsumexp(0).sum())

    found = float(likeliest_scale(r, ONE, df=df))
    tried = torch.logspace(-2, 2, 2001, dtype=torch.double).tolist()
    best = max(tried, key=score)
    assert found == pytest.approx(best, rel=5e-3)
    assert score(found) >= score(best)
    near = likeliest_scale(r, ONE, df=df, near=torch.tensor(2.5 * found))
    assert float(near) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("df", [math.inf, 5.0, 2.5])
def test_central_quantiles_and_the_scale_that_holds_them(df: float) -> None:
    p, c = tails(df)
    for level in LEVELS:
        q = central_quantile(level, df)
        held = sum(a * (2 * NormalDist(0.0, b).cdf(q) - 1) for a, b in zip(p, c, strict=True))
        assert held == pytest.approx(level, abs=1e-9)
    generator = torch.Generator().manual_seed(0)
    sds = torch.tensor(c, dtype=torch.double)[torch.multinomial(torch.tensor(p), 100_000, True, generator=generator)]
    errors = 3.0 * sds * torch.randn(len(sds), dtype=torch.double, generator=generator)
    assert float(holding_scale(errors, df)) == pytest.approx(3.0, rel=0.02)
    errors[::50] *= 1e6  # some are far beyond what the noise can reach
    assert float(holding_scale(errors, df)) == pytest.approx(3.0, rel=0.15)
