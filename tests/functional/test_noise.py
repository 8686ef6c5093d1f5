"""The likeliest scale of noise: closed form for one draw, brute force for several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnn.functional.noise import SMALLEST, likeliest_scale

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
