"""Laplace's approximation over a layer's inducing matrix u: the curvature of the loss becomes a Gaussian.

A layer is s = u t, y = sigma A_r^T s for its rows t = A_c x. One input's gradient is G = sum over rows g t^T with
g = d loss / d s, and the Gauss-Newton matrix of N inputs is H = N E[vec G vec G^T]. It is diagonal, as nearly as two
rotations allow, in the eigenbases of second moments of t and g (the Kronecker eigenbasis):

    v = Q_out^T u Q_in,   Lambda_ij = N E[(Q_out^T G Q_in)_ij^2],   sd(v_ij) = (Lambda_ij + tau)^-1/2

For one row per input and an output curvature that is the same for all inputs this is exact. The prior N(0, I / tau) is
invariant to rotations, so Z takes them up (`rotated_side`) and v is an ordinary diagonal q(U).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.inducing import Factors

ROUNDS = 20  # of the fixed point for the noise: it moves by less than a per cent after ten
HALVINGS = 40  # of the interval for log tau: to 1e-10 of tau
LEAST, MOST = 1e-10, 1e10  # tau


class Basis(NamedTuple):
    """Two rotations, in float64. Q_in may have fewer columns than rows: directions that are left out."""

    out: Tensor  # (M_out, M_out)
    into: Tensor  # (M_in, M_in)


def eigenbasis(moments_out: Tensor, moments_in: Tensor) -> Basis:
    """The eigenvectors of E[g g^T] (M_out, M_out) and E[t t^T] (M_in, M_in), largest eigenvalues first."""
    return Basis(*(torch.linalg.eigh(S.double()).eigenvectors.flip(-1) for S in (moments_out, moments_in)))


def curvature_in(basis: Basis, g: Tensor, t: Tensor) -> Tensor:
    """sum over inputs and scores of (Q_out^T G Q_in)^2, (M_out, M_in), for G = sum over rows g t^T.

    Args:
        g: (scores, n, p, M_out), gradients at the p rows of n inputs.
        t: (n, p, M_in).
    """
    g, t = g @ basis.out.to(g), t @ basis.into.to(t)
    if t.shape[1] == 1:
        return (g.square().sum(0)[:, 0].mT @ t.square()[:, 0]).double()
    squares = torch.zeros(g.shape[-1], t.shape[-1], dtype=torch.double, device=t.device)
    for score in g:
        squares += (score.mT @ t).square().sum(0)
    return squares


def rotated_side(side: Factors, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Z (m, d) with rows of norm 1 and D (m,) whose factor A is Q^T A, for Q (M, m) with orthonormal columns.

    K K^T = Q^T R R^T Q with K lower triangular, B = K^-1 Q^T A, D = 1 / |rows of B|, Z = D B: then
    Psi = D (B B^T + I) D and L = D K^-1, since Q^T (A A^T + R R^T) Q = I. P = A^T A is unchanged where Q is square.
    """
    A, R = side.A.double(), side.R.double()
    triangle = torch.linalg.qr(R.mT @ Q).R
    K = (triangle.diagonal().sign()[:, None] * triangle).mT
    B = torch.linalg.solve_triangular(K, Q.mT @ A, upper=False)
    D = 1 / torch.linalg.vector_norm(B, dim=1)
    return D[:, None] * B, D


def effective_number(curvature: Tensor, tau: float) -> float:
    """How many parameters the data determine: sum Lambda / (Lambda + tau)."""
    return float((curvature / (curvature + tau)).sum())


def log_evidence(curvature: Tensor, mean: Tensor, tau: float) -> float:
    """What a layer adds to log p(data | mean) in the log marginal likelihood.

    1/2 [ n log tau - tau |mean|^2 - sum log(Lambda + tau) ] for the n entries of Lambda.
    """
    n = curvature.numel()
    volume = float(torch.log(curvature + tau).sum())
    return 0.5 * (n * math.log(tau) - tau * float(mean.double().square().sum()) - volume)


def fitted_precision(curvature: Tensor, mean: Tensor) -> float:
    """tau by marginal likelihood: the root of tau |mean|^2 = sum Lambda / (Lambda + tau).

    The left side rises with tau and the right side falls, so there is one root. (The fixed point tau <- right side /
    |mean|^2 runs to and fro where Lambda << tau, as for a network that is sure of all its training data.)
    1 for a mean of zero, which says nothing about the scale of the prior, and without curvature.
    """
    energy = float(mean.double().square().sum())
    if energy == 0 or not bool((curvature > 0).any()):
        return 1.0
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if math.exp(middle) * energy < effective_number(curvature, math.exp(middle)):
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


class Noise(NamedTuple):
    """Gaussian noise fitted together with the precisions of all layers."""

    sd: float
    precisions: list[float]


def fitted_noise(
    curvatures: list[Tensor], means: list[Tensor], squares: float, values: float, given: float | None = None
) -> Noise:
    """Noise and precisions of a regression by marginal likelihood: s^2 <- RSS / (values - effective number).

    Args:
        curvatures: Lambda of every layer for noise of sd 1; it is in proportion to 1 / s^2.
        squares: the residual sum of squares at the mean, over so many `values` (targets).
        given: tau of all layers, where it is not to be fitted.
    """
    variance = max(squares / max(values, 1), torch.finfo(torch.float32).tiny)
    taus = [1.0 if given is None else given] * len(means)
    for _ in range(ROUNDS):
        if given is None:
            pairs = zip(curvatures, means, strict=True)
            taus = [fitted_precision(curvature / variance, mean) for curvature, mean in pairs]
        number = sum(effective_number(one / variance, tau) for one, tau in zip(curvatures, taus, strict=True))
        freedom = max(values - number, 0.1 * values, 1.0)  # as many parameters as targets leave nothing for noise
        variance = max(squares / freedom, torch.finfo(torch.float32).tiny)
    return Noise(math.sqrt(variance), taus)


# ---- fewer columns ---------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Some directions of the input side, and what is left out."""

    V: Tensor  # (M, m), orthonormal columns
    left_out: Tensor  # (M - m,), second moments of t along the others


def kept_directions(mean: Tensor, moments_in: Tensor, m: int) -> Kept:
    """m directions of t: first those that the mean of u (M_out, M) needs, then those with most curvature.

    Curvature along a direction is in proportion to its second moment E[t t^T], so these are leading eigenvectors.

    Raises:
        ValueError: the mean needs more.
    """
    _, singular, right = torch.linalg.svd(mean.double(), full_matrices=True)
    rank = int((singular > singular.max() * max(mean.shape) * torch.finfo(mean.dtype).eps).sum()) if mean.numel() else 0
    if m < rank:
        raise ValueError(f"inducing_cols={m} cannot keep the weights: they have rank {rank}, the least possible")
    own, others = right[:rank].mT, right[rank:].mT  # (M, rank), (M, M - rank)
    values, vectors = torch.linalg.eigh(others.mT @ moments_in.double() @ others)
    rest, chosen = values.flip(0)[m - rank :], vectors.flip(-1)[:, : m - rank]
    return Kept(torch.cat([own, others @ chosen], dim=1), rest.clamp(min=0))
