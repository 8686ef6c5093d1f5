"""Dense Gaussians straight from the paper's joint prior: the oracle that the tests in this folder share.

Nothing here uses `bnn`. With sigma_r = sigma and sigma_c = 1 the paper's prior of (W, U) is, columns stacked,

    Cov(vec W) = sigma^2 I,   Cov(vec W, vec U) = sigma Z_c^T (x) Z_r^T,   Cov(vec U) = Psi_c (x) Psi_r
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# (d_out, d_in, M_out, M_in): M below, at and above d, on each side
SHAPES = [(4, 5, 2, 3), (3, 4, 3, 4), (3, 2, 5, 4), (6, 3, 2, 5), (2, 5, 4, 2), (1, 4, 2, 2), (1, 1, 1, 1)]

EXACT = 1e-10  # tolerance of what is exact but for float64 rounding
ERRORS = 5.0  # tolerance of Monte Carlo, in standard errors of the estimate

Noise = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
Sampler = Callable[[Noise], Tensor]


class Case(NamedTuple):
    """Parameters of one layer in float64, chosen so that every noise term carries weight: D in [0.3, 1]."""

    z_row: Tensor
    d_row: Tensor
    z_col: Tensor
    d_col: Tensor
    u: Tensor
    lamda: float = 0.7
    sigma: float = 1.3


def make_case(d_out: int, d_in: int, m_out: int, m_in: int) -> Case:
    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double)

    def diagonal(m: int) -> Tensor:
        return 0.3 + 0.7 * torch.rand(m, dtype=torch.double)

    return Case(0.6 * randn(m_out, d_out), diagonal(m_out), 0.6 * randn(m_in, d_in), diagonal(m_in), randn(m_out, m_in))


def vec(W: Tensor) -> Tensor:
    """Stacks the columns of (..., n, m)."""
    return W.mT.flatten(-2)


def psi(z: Tensor, d: Tensor) -> Tensor:
    return z @ z.T + torch.diag(d**2)


def condition(joint: Tensor, n: int, value: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the first n entries of N(0, joint) given that the others equal `value`."""
    gain = joint[:n, n:] @ torch.linalg.inv(joint[n:, n:])
    return gain @ value, joint[:n, :n] - gain @ joint[n:, :n]


def dense_conditional(case: Case) -> tuple[Tensor, Tensor]:
    """Mean (d,) and covariance (d, d) of vec W given U = L_r u L_c^T, the covariance times lamda^2."""
    psi_row, psi_col = psi(case.z_row, case.d_row), psi(case.z_col, case.d_col)
    cross = case.sigma * torch.kron(case.z_col.T.contiguous(), case.z_row.T.contiguous())
    prior = case.sigma**2 * torch.eye(len(cross), dtype=torch.double)
    joint = torch.cat([torch.cat([prior, cross], 1), torch.cat([cross.T, torch.kron(psi_col, psi_row)], 1)])
    U = torch.linalg.cholesky(psi_row) @ case.u @ torch.linalg.cholesky(psi_col).T
    mean, covariance = condition(joint, len(cross), vec(U))
    return mean, case.lamda**2 * covariance


def projection(z: Tensor, d: Tensor) -> Tensor:
    """P = Z^T Psi^-1 Z of one side."""
    return z.T @ torch.linalg.inv(psi(z, d)) @ z


def output_moments(case: Case, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of X W^T (p, d_out) given u, flattened row by row, for the rows X (p, d_in) of one input."""
    mean, covariance = dense_conditional(case)
    lift = torch.kron(X.contiguous(), torch.eye(case.z_row.shape[1], dtype=torch.double))  # vec W to the outputs
    return lift @ mean, lift @ covariance @ lift.T


def stage_covariances(case: Case, X: Tensor) -> tuple[Tensor, Tensor]:
    """The covariance of X W^T, flattened row by row, in its two stages: of T C^T given u, and of the rest given C."""
    p_row, p_col = projection(case.z_row, case.d_row), projection(case.z_col, case.d_col)
    eye, inner = torch.eye(len(p_row), dtype=torch.double), X @ p_col @ X.T
    scale = (case.lamda * case.sigma) ** 2
    return scale * torch.kron(inner, eye - p_row), scale * torch.kron(X @ X.T - inner, eye)


def basis(shapes: Shapes) -> Noise:
    """All unit vectors of the noise at once, (n, *shape) for n entries in all."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    blocks = torch.eye(sum(sizes), dtype=torch.double).split(sizes, dim=1)
    return {name: block.reshape(-1, *shapes[name]) for name, block in zip(shapes, blocks, strict=True)}


def silence(shapes: Shapes) -> Noise:
    return {name: torch.zeros(shape, dtype=torch.double) for name, shape in shapes.items()}


def unit_moments(sampler: Sampler, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Exact mean and covariance of sampler(noise), flattened: one call per entry of the noise."""
    mean = sampler(silence(shapes)).flatten()
    units = basis(shapes)
    calls = range(sum(math.prod(shape) for shape in shapes.values()))
    J = torch.stack([sampler({name: block[i] for name, block in units.items()}).flatten() - mean for i in calls])
    return mean, J.T @ J


def linear_moments(sampler: Sampler, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Exact mean and covariance of vec sampler(noise), which is affine in standard normal noise of these shapes."""
    mean = vec(sampler(silence(shapes)))
    J = vec(sampler(basis(shapes))) - mean  # (n, d)
    return mean, J.T @ J


def worst_error(estimate: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]) -> float:
    """The largest difference between two pairs of mean and covariance."""
    return max(float((a - b).abs().max()) for a, b in zip(estimate, truth, strict=True))


def worst_z_score(samples: Tensor, truth: tuple[Tensor, Tensor]) -> float:
    """The largest error, in standard errors, of the mean and the covariance of samples (N, d) of a Gaussian."""
    mean, covariance = truth
    variance = covariance.diagonal()
    centred = samples - mean
    mean_error = centred.mean(0) / (variance / len(samples)).sqrt()
    error = centred.T @ centred / len(samples) - covariance
    covariance_error = error / ((torch.outer(variance, variance) + covariance**2) / len(samples)).sqrt()
    return max(float(mean_error.abs().max()), float(covariance_error.abs().max()))


def without(noise: Noise, name: str) -> Noise:
    return noise | {name: torch.zeros_like(noise[name])}
