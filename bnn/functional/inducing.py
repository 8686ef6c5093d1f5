"""Section 3 of the paper: the augmented prior, its conditional, the extended Matheron rule, and the KL.

A weight matrix W (d_out, d_in), prior N(0, sigma^2 I), is augmented by a small U (M_out, M_in). Everything is written
in the whitened u ~ N(0, I) with U = L_r u L_c^T; per side, with Z (M, d) and D = diag(d):

    Psi = Z Z^T + D^2,   L = chol(Psi),   A = L^-1 Z (M, d),   R = L^-1 D (M, M),   A A^T + R R^T = I

With P = A^T A, a root of I - P is F = I - A^T G A for G = (I + R)^-1: from G^-1 G^-T = I + R + R^T + R R^T follows
G + G^T - G A A^T G^T = I, hence F F^T = I - P. R is a triangle with a positive diagonal, so G is cheap and harmless.

    E[W|u]       = sigma A_r^T u A_c
    Cov[vec W|u] = lamda^2 sigma^2 (I - P_c (x) P_r),   P = A^T A,   vec stacks columns

Noise is an argument of every draw, so that its exact covariance can be read off: W is linear in the noise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import inverse_tril, standard_normal
from bnn.functional.linalg import at_least_float32, safe_cholesky, without_autocast


class Factors(NamedTuple):
    """One side (rows or columns) of the augmented prior."""

    A: Tensor  # (M, d)
    R: Tensor  # (M, M)
    L: Tensor  # (M, M), lower triangular
    G: Tensor  # (M, M), lower triangular


def factor(z: Tensor, d: Tensor, name: str = "Psi") -> Factors:
    """The factors of one side from Z (M, d_side) and the positive diagonal D (M,).

    Runs in float32 or better whatever autocast says; in float64 for M near d_side and above, where Z Z^T is nearly
    singular and only D keeps Psi positive definite (in float32 and D = 1e-3, A would be off by 3e-3).
    """
    z, d = at_least_float32(z), at_least_float32(d)
    dtype = z.dtype
    if needs_double(z):
        z, d = z.double(), d.double()
    with without_autocast(z):
        psi = z @ z.mT + torch.diag(d.square())
        L = safe_cholesky(psi, name)
        inverse = inverse_tril(L)
        R = inverse * d
        G = inverse_tril(R + torch.eye(R.shape[-1], dtype=R.dtype, device=R.device))
        return Factors(*(part.to(dtype) for part in (inverse @ z, R, L, G)))


def needs_double(z: Tensor) -> bool:
    """Whether Z (M, d) is so near to square, or taller, that its factors need float64."""
    return 8 * z.shape[0] >= 7 * z.shape[1]


def without_projection(E: Tensor, side: Factors) -> Tensor:
    """E F^T = E - E A^T G^T A for rows E (..., d): standard normal rows get the covariance I - P."""
    return E - (E @ side.A.mT @ side.G.mT) @ side.A


def conditional_mean(u: Tensor, row: Factors, col: Factors, sigma: float) -> Tensor:
    """E[W|u] = sigma A_r^T u A_c, (..., d_out, d_in), for u (..., M_out, M_in)."""
    return sigma * (row.A.mT @ u) @ col.A


def conditional_covariance(row: Factors, col: Factors, lamda: float, sigma: float) -> Tensor:
    """Cov[vec W|u] = lamda^2 sigma^2 (I - P_c (x) P_r), (d, d) for d = d_in d_out and stacked columns; small d."""
    p_row, p_col = row.A.mT @ row.A, col.A.mT @ col.A
    eye = torch.eye(len(p_row) * len(p_col), dtype=p_row.dtype, device=p_row.device)
    return lamda**2 * sigma**2 * (eye - torch.kron(p_col, p_row))


class MatheronNoise(NamedTuple):
    """Standard normal blocks of the joint (W, U_c; U_r, U)."""

    E1: Tensor  # (..., d_out, d_in)
    E2: Tensor  # (..., d_out, M_in)
    E3: Tensor  # (..., M_out, d_in)
    E4: Tensor  # (..., M_out, M_in)


def matheron_noise(row: Factors, col: Factors, *batch: int, generator: torch.Generator | None = None) -> MatheronNoise:
    """Noise for `extended_matheron`, with leading batch dimensions."""
    (m_out, d_out), (m_in, d_in) = row.A.shape, col.A.shape
    shapes = (d_out, d_in), (d_out, m_in), (m_out, d_in), (m_out, m_in)
    return MatheronNoise(*(standard_normal(*batch, *s, like=row.A, generator=generator) for s in shapes))


def extended_matheron(
    u: Tensor, row: Factors, col: Factors, lamda: Tensor | float, sigma: float, noise: MatheronNoise
) -> Tensor:
    """The paper's draw of W (..., d_out, d_in) from q(W|u) = N(E[W|u], lamda^2 Cov), the extended Matheron rule.

    Draw (Wbar, ubar) from the joint prior, then move Wbar by what the conditional mean says about u - ubar:

        W    = lamda sigma E1 + sigma A_r^T (u - lamda ubar) A_c
        ubar = A_r E1 A_c^T + A_r E2 R_c^T + R_r E3 A_c^T + R_r E4 R_c^T

    The paper draws the second and third term with chol(Z Z^T), which is singular for M > d; with the thin noise E2 and
    E3 the rule is exact for any M. It is the textbook and the oracle: layers use `bnn.functional.draws`.
    """
    E1, E2, E3, E4 = noise
    ubar = (row.A @ E1 + row.R @ E3) @ col.A.mT + (row.A @ E2 + row.R @ E4) @ col.R.mT
    return lamda * sigma * E1 + conditional_mean(u - lamda * ubar, row, col, sigma)


def rescaling_kl(lamda: Tensor) -> Tensor:
    """r(lamda) = lamda^2 / 2 - log lamda - 1/2: KL[q(W|U) || p(W|U)] per entry of W, so d_in d_out r(lamda) in all."""
    return torch.addcmul(-0.5 - lamda.log(), lamda, lamda, value=0.5)
