"""Moments and draws of outputs against the dense covariance of the weights."""

from __future__ import annotations

import pytest
import torch
from dense_oracle import EXACT, SHAPES, make_case
from torch import Tensor

from bnn.functional.inducing import Factors, conditional_covariance, factor
from bnn.functional.linalg import safe_sqrt
from bnn.functional.output_gaussian import (
    RowGaussian,
    draw_outputs,
    noise_width,
    output_mean,
    output_variance,
    row_gaussian,
)

LAMDA, SIGMA = 0.7, 1.3
KINDS = ["whitened", "unwhitened", "point"]


def dense_moments(
    X: Tensor, mean: Tensor, sd: Tensor, row: Factors, col: Factors, lamda: float, whitened: bool
) -> tuple[Tensor, Tensor]:
    """E[y] (n, d_out) and Cov[y] (n, d_out, d_out) from E[vec W] and Cov[vec W], columns stacked."""
    inverse = torch.eye(mean.numel(), dtype=mean.dtype)
    if not whitened:  # vec u = (L_c^-1 (x) L_r^-1) vec U
        inverse = torch.kron(torch.linalg.inv(col.L), torch.linalg.inv(row.L))
    back = SIGMA * torch.kron(col.A.mT.contiguous(), row.A.mT.contiguous()) @ inverse
    center = back @ mean.mT.flatten()
    covariance = back @ torch.diag(sd.mT.flatten() ** 2) @ back.mT
    covariance = covariance + conditional_covariance(row, col, lamda, SIGMA)
    means, covariances = [], []
    for x in X:
        at = torch.kron(x[None], torch.eye(row.A.shape[1], dtype=x.dtype))  # y = W x
        means.append(at @ center)
        covariances.append(at @ covariance @ at.mT)
    return torch.stack(means), torch.stack(covariances)


def covariance_of_draws(rows: RowGaussian) -> Tensor:
    """Cov[y] (n, d_out, d_out), read off unit noise: draws are linear in it."""
    noise = torch.eye(noise_width(rows), dtype=torch.double)[:, None]
    J = draw_outputs(rows, noise) - output_mean(rows)
    return torch.einsum("kna,knb->nab", J, J)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lamda", [0.0, LAMDA])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_draws_are_those_of_the_dense_gaussian(shape: tuple[int, ...], lamda: float, kind: str) -> None:
    case = make_case(*shape)
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    sd = 0.2 + torch.rand_like(case.u)
    X = torch.randn(4, shape[1], dtype=torch.double)
    T = X @ col.A.mT
    a = safe_sqrt(X.square().sum(1))
    b = safe_sqrt(X.square().sum(1) - T.square().sum(1))
    norms = (lamda * SIGMA * a, lamda * SIGMA * b) if lamda else None
    prior = (row.L, col.L) if kind == "unwhitened" else None
    rows = row_gaussian(T, case.u, None if kind == "point" else sd, row, SIGMA, prior, norms)
    mean, covariance = dense_moments(
        X, case.u, 0 * sd if kind == "point" else sd, row, col, lamda, whitened=kind != "unwhitened"
    )
    assert torch.allclose(output_mean(rows), mean, atol=EXACT)
    assert torch.allclose(output_variance(rows), covariance.diagonal(dim1=1, dim2=2), atol=EXACT)
    assert torch.allclose(covariance_of_draws(rows), covariance, atol=EXACT)


def test_rows_may_have_noise_of_their_own() -> None:
    case = make_case(4, 5, 2, 3)
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    X = torch.randn(3, 5, dtype=torch.double)
    norms = (torch.rand(3, dtype=torch.double), torch.rand(3, dtype=torch.double))
    rows = row_gaussian(X @ col.A.mT, case.u, torch.ones_like(case.u), row, SIGMA, norms=norms)
    noise = torch.randn(6, 3, noise_width(rows), dtype=torch.double)
    together = draw_outputs(rows, noise)
    for i in range(3):
        assert torch.allclose(draw_outputs(rows, noise[:, i : i + 1])[:, i], together[:, i])
