"""The paper's function-space view: F = W X given U_c is the sparse-GP conditional of a linear kernel.

Each row f_i of F is a GP with kernel K(x, x') = sigma^2 x^T x'. Its inducing outputs at the columns of Z_c^T, observed
with noise, are row i of U_c; with the paper's sigma_r = sigma and sigma_c = 1

    u_i^c = f_i(Z_c^T) + sigma D_c n,   so   Cov(u_i^c) = K(Z_c, Z_c) + sigma^2 D_c^2 = sigma^2 Psi_c

The second stage of our draw is written in C with E[W|C] = C A_c = C L_c^-1 Z_c. The paper has E[W|U_c] =
U_c Psi_c^-1 Z_c = U_c L_c^-T L_c^-1 Z_c: hence C = U_c L_c^-T, the inducing columns whitened on the column side.
"""

from __future__ import annotations

import pytest
import torch
from dense_oracle import EXACT, SHAPES, Case, Noise, condition, linear_moments, make_case, psi, vec, worst_error
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bnn.functional.draws import draw_columns, draw_dense
from bnn.functional.inducing import factor, rescaling_kl

POINTS = 3  # inputs


def sparse_gp(case: Case, X: Tensor, U_c: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of vec F given U_c from the joint of GP values at X and noisy values at Z_c, row by row."""
    inputs = torch.cat([X, case.z_col.T], dim=1)
    joint = case.sigma**2 * inputs.T @ inputs
    n = X.shape[1]
    joint[n:, n:] += case.sigma**2 * torch.diag(case.d_col**2)
    rows = [condition(joint, n, values) for values in U_c]
    mean, covariance = torch.stack([mean for mean, _ in rows]), rows[0][1]
    return vec(mean), torch.kron(covariance, torch.eye(len(U_c), dtype=torch.double))  # rows are independent


@pytest.mark.parametrize("points", [1, POINTS, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_second_stage_is_the_sparse_gp_conditional(shape: tuple[int, int, int, int], points: int) -> None:
    case = make_case(*shape)
    d_out, d_in, _, m_in = shape
    X = torch.randn(d_in, points, dtype=torch.double)
    U_c = torch.randn(d_out, m_in, dtype=torch.double)
    C = U_c @ torch.linalg.inv(torch.linalg.cholesky(psi(case.z_col, case.d_col))).T
    col = factor(case.z_col, case.d_col)

    def outputs(noise: Noise) -> Tensor:
        return draw_dense(C, col, 1.0, case.sigma, noise["E1"]) @ X

    moments = linear_moments(outputs, {"E1": (d_out, d_in)})
    assert worst_error(moments, sparse_gp(case, X, U_c)) < EXACT


@pytest.mark.parametrize("shape", SHAPES)
def test_first_stage_projects_the_inducing_outputs(shape: tuple[int, int, int, int]) -> None:
    """U_c | U = MN(sigma Z_r^T Psi_r^-1 U, sigma^2 (I - Z_r^T Psi_r^-1 Z_r), Psi_c), as in the paper."""
    case = make_case(*shape)
    d_out, _, _, m_in = shape
    psi_row, psi_col = psi(case.z_row, case.d_row), psi(case.z_col, case.d_col)
    L_row, L_col = torch.linalg.cholesky(psi_row), torch.linalg.cholesky(psi_col)
    row = factor(case.z_row, case.d_row)

    def inducing_outputs(noise: Noise) -> Tensor:
        return draw_columns(case.u, row, 1.0, case.sigma, noise["E2"]) @ L_col.T

    gain = case.z_row.T @ torch.linalg.inv(psi_row)
    mean = case.sigma * gain @ (L_row @ case.u @ L_col.T)
    covariance = case.sigma**2 * (torch.eye(d_out, dtype=torch.double) - gain @ case.z_row)
    moments = linear_moments(inducing_outputs, {"E2": (d_out, m_in)})
    assert worst_error(moments, (vec(mean), torch.kron(psi_col, covariance))) < EXACT


@pytest.mark.parametrize("lamda", [0.1, 0.7])
def test_kl_of_the_outputs_shrinks_with_the_number_of_inputs(lamda: float) -> None:
    """KL[q(F|X,U) || p(F|X,U)] = N / d_in R(lamda) for N <= d_in inputs, R the KL of the weights."""
    case = make_case(4, 5, 2, 3)
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    X = torch.randn(5, POINTS, dtype=torch.double)

    def outputs(noise: Noise, scale: float) -> Tensor:
        C = draw_columns(case.u, row, scale, case.sigma, noise["E2"])
        return draw_dense(C, col, scale, case.sigma, noise["E1"]) @ X

    shapes = {"E1": (4, 5), "E2": (4, 3)}
    q, p = (
        MultivariateNormal(*linear_moments(lambda noise, s=scale: outputs(noise, s), shapes)) for scale in (lamda, 1.0)
    )
    weights = 4 * 5 * rescaling_kl(torch.tensor(lamda, dtype=torch.double))
    torch.testing.assert_close(kl_divergence(q, p), POINTS / 5 * weights, atol=1e-9, rtol=1e-9)
