"""Every closed-form KL against the dense formula, Monte Carlo, and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bnn.functional.gaussian import (
    inverse_tril,
    kl_diagonal,
    kl_diagonal_u,
    kl_full,
    kl_full_u,
    kl_matrix_u,
    standard_normal,
    whiten,
)

N, M = 3, 4  # U is (N, M)
DRAWS = 100_000
ERRORS = 5.0  # tolerance of Monte Carlo, in standard errors


class Problem(NamedTuple):
    """A closed form, its arguments, and the two dense Gaussians it compares."""

    kl: Callable[..., Tensor]
    arguments: tuple[Tensor, ...]
    q: MultivariateNormal
    p: MultivariateNormal


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double)


def sds(*shape: int) -> Tensor:
    return 0.3 + torch.rand(*shape, dtype=torch.double)


def tril(n: int) -> Tensor:
    return 0.4 * randn(n, n).tril(-1) + torch.diag(sds(n))


def gaussian(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean.flatten(), covariance)  # vec is row-major throughout


def square(T: Tensor) -> Tensor:
    return T @ T.T


def diagonal() -> Problem:
    mean, sd = randn(N, M), sds(N, M)
    prior = gaussian(torch.full((N, M), 0.3, dtype=torch.double), 1.7**2 * torch.eye(N * M, dtype=torch.double))
    return Problem(
        lambda m, s: kl_diagonal(m, s, 0.3, 1.7), (mean, sd), gaussian(mean, torch.diag(sd.flatten() ** 2)), prior
    )


def full() -> Problem:
    mean, T, prior_mean, prior_sd = randn(N * M), tril(N * M), randn(N * M), sds(N * M)
    return Problem(
        lambda m, t, pm, ps: kl_full(m, t.tril(), pm, ps),
        (mean, T, prior_mean, prior_sd),
        gaussian(mean, square(T)),
        gaussian(prior_mean, torch.diag(prior_sd**2)),
    )


def diagonal_u() -> tuple[Callable[..., Tensor], tuple[Tensor, ...], MultivariateNormal]:
    mean, sd = randn(N, M), sds(N, M)
    return kl_diagonal_u, (mean, sd), gaussian(mean, torch.diag(sd.flatten() ** 2))


def matrix_u() -> tuple[Callable[..., Tensor], tuple[Tensor, ...], MultivariateNormal]:
    mean, row, col = randn(N, M), tril(N), tril(M)
    return (
        lambda m, r, c, prior: kl_matrix_u(m, r.tril(), c.tril(), prior),
        (mean, row, col),
        gaussian(mean, torch.kron(square(row), square(col))),
    )


def full_u() -> tuple[Callable[..., Tensor], tuple[Tensor, ...], MultivariateNormal]:
    mean, T = randn(N, M), tril(N * M)
    return lambda m, t, prior: kl_full_u(m, t.tril(), prior), (mean, T), gaussian(mean, square(T))


def whitened(make: Callable[[], tuple]) -> Problem:
    kl, arguments, q = make()
    eye = torch.eye(N * M, dtype=torch.double)
    return Problem(lambda *a: kl(*a, None), arguments, q, gaussian(torch.zeros_like(arguments[0]), eye))


def unwhitened(make: Callable[[], tuple]) -> Problem:
    """The prior MN(0, L_r L_r^T, L_c L_c^T), whose factors are arguments too."""
    kl, arguments, q = make()
    L_r, L_c = tril(N), tril(M)
    prior = gaussian(torch.zeros_like(arguments[0]), torch.kron(square(L_r), square(L_c)))
    return Problem(lambda *a: kl(*a[:-2], (a[-2].tril(), a[-1].tril())), (*arguments, L_r, L_c), q, prior)


PROBLEMS: dict[str, Callable[[], Problem]] = {"kl_diagonal": diagonal, "kl_full": full} | {
    f"{make.__name__}, {prior.__name__}": lambda prior=prior, make=make: prior(make)
    for make in (diagonal_u, matrix_u, full_u)
    for prior in (whitened, unwhitened)
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_kl_is_the_dense_one(name: str) -> None:
    kl, arguments, q, p = PROBLEMS[name]()
    torch.testing.assert_close(kl(*arguments), kl_divergence(q, p), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_kl_by_monte_carlo(name: str) -> None:
    """E_q[log q - log p] over 100,000 draws."""
    kl, arguments, q, p = PROBLEMS[name]()
    draws = q.sample((DRAWS,))
    ratio = q.log_prob(draws) - p.log_prob(draws)
    assert abs(ratio.mean() - kl(*arguments)) < ERRORS * ratio.std() / DRAWS**0.5


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_of_kl(name: str) -> None:
    kl, arguments, _, _ = PROBLEMS[name]()
    assert torch.autograd.gradcheck(kl, [argument.requires_grad_() for argument in arguments])


@pytest.mark.parametrize("name", ["diagonal_u, whitened", "matrix_u, whitened", "full_u, whitened"])
def test_kl_of_the_prior_is_zero(name: str) -> None:
    kl, arguments, _, _ = PROBLEMS[name]()
    own = [torch.zeros_like(arguments[0]), *(torch.eye(len(a), dtype=a.dtype) for a in arguments[1:])]
    own[1] = torch.ones_like(arguments[1]) if name.startswith("diagonal") else own[1]
    assert kl(*own).abs() < 1e-12


@pytest.mark.parametrize("sd", [9e-14, 1e-6, 1e6])
def test_no_kl_is_infinite_for_any_scale_a_layer_can_hold(sd: float) -> None:
    mean = torch.randn(N, M)
    assert kl_diagonal_u(mean, torch.full((N, M), sd)).isfinite()
    assert kl_diagonal(mean, torch.full((N, M), sd), 0.0, 1.0).isfinite()


def test_whiten_undoes_the_colouring_of_u() -> None:
    u, L_r, L_c = randn(5, N, M), tril(N), tril(M)
    torch.testing.assert_close(whiten(L_r @ u @ L_c.T, (L_r, L_c)), u)
    assert whiten(u, None) is u


def test_inverse_tril() -> None:
    L = tril(6)
    torch.testing.assert_close(inverse_tril(L), torch.linalg.inv(L))


def test_standard_normal_follows_its_model_and_generator() -> None:
    like = torch.zeros(1, dtype=torch.double)
    a, b = (standard_normal(2, 3, like=like, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert a.shape == (2, 3)
    assert a.dtype == torch.double
    assert torch.equal(a, b)
    assert not torch.equal(a, standard_normal(2, 3, like=like))
