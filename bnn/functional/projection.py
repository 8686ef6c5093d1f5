"""Inducing factors from weights at hand: sigma A_r^T u A_c equals their best low-rank approximation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import standard_normal
from bnn.functional.inducing import factor
from bnn.functional.linalg import at_least_float32, without_autocast

LARGE = 1536  # from this size on (of the smaller side) the whole spectrum takes longer than its leading part
RESIDUAL = 3e-3  # of a truncated SVD, relative to its singular values
ASKEW = 1e-4  # what Q Q^T may differ by from the identity


class Projection(NamedTuple):
    """A start for an inducing layer."""

    z_row: Tensor  # (M_out, d_out)
    z_col: Tensor  # (M_in, d_in)
    u: Tensor  # (M_out, M_in), whitened


def random_start(d_out: int, d_in: int, m_out: int, m_in: int, like: Tensor) -> Projection:
    """The paper's start: entries of Z ~ N(0, 1/M) with M of the own side, u ~ N(0, 1)."""
    z_row = standard_normal(m_out, d_out, like=like) / m_out**0.5
    z_col = standard_normal(m_in, d_in, like=like) / m_in**0.5
    return Projection(z_row, z_col, standard_normal(m_out, m_in, like=like))


def project(W: Tensor, m_out: int, m_in: int, sigma: float, d_row: Tensor, d_col: Tensor) -> Projection:
    """Z_r, Z_c and u such that sigma A_r^T u A_c = W truncated at rank k = min(M_out, M_in, rank W).

    With W = B S Q^T the first k rows of Z_r and Z_c are the leading singular vectors (norm 1), the spare rows are as in
    the paper's start, and u = pinv(A_r^T) (W_k / sigma) pinv(A_c). Exact once M reaches the rank of W.

    Args:
        W: weights (d_out, d_in), the bias as the last column.
        d_row, d_col: the positive diagonals of D, (M_out,) and (M_in,).
    """
    check_finite(W)
    like = torch.empty((), dtype=torch.double, device=W.device)
    start = random_start(W.shape[0], W.shape[1], m_out, m_in, like=like)
    B, S, Q = truncated_svd(W, k := min(m_out, m_in, *W.shape))
    z_row, z_col = start.z_row, start.z_col
    z_row[:k], z_col[:k] = B.mT, Q
    row, col = factor(z_row, d_row.double()), factor(z_col, d_col.double())
    u = (torch.linalg.pinv(row.A.mT) @ (B * S) / sigma) @ (Q @ torch.linalg.pinv(col.A))
    return Projection(*(part.to(W.dtype) for part in (z_row, z_col, u)))


def check_finite(W: Tensor) -> None:
    """Raises ValueError for weights that hold NaN or inf."""
    if not W.is_meta and not bool(torch.isfinite(W).all()):
        raise ValueError(f"the weights to keep, {tuple(W.shape)} as a matrix, hold NaN or inf: repair them first")


def truncated_svd(W: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """B (n, k), S (k,), Q (k, m) in float64: B S Q is the best rank-k approximation of W (n, m); fast for small k.

    For k well below both sides: of a large W by `krylov_svd`, where its residual says that it converged, else by the
    eigenvectors of the smaller Gram matrix, unless S falls by more than 1e-6 within the k: too much for that.
    """
    smaller = min(W.shape)
    if not W.is_meta and smaller >= LARGE and 8 * k <= smaller:
        with without_autocast(W):
            found = krylov_svd(at_least_float32(W), k)
        if found is not None:
            B, S, Q = found
            return B.double(), S.double(), Q.double()
    W = W.double()
    if not W.is_meta and 4 * k <= smaller:
        wide = W if W.shape[0] <= W.shape[1] else W.mT
        vectors = torch.linalg.eigh(wide @ wide.mT).eigenvectors[:, -k:].flip(-1)  # (smaller side, k)
        other, S, rotation = torch.linalg.svd(wide.mT @ vectors, full_matrices=False)
        vectors = vectors @ rotation.mT
        if bool(S[-1] > 1e-6 * S[0]):
            return (vectors, S, other.mT) if wide is W else (other, S, vectors.mT)
    B, S, Q = torch.linalg.svd(W, full_matrices=False)
    return B[:, :k], S[:k], Q[:k]


def singular_values(W: Tensor) -> Tensor:
    """All singular values of W (n, m), the largest first, in float64: the roots of the smaller Gram matrix's spectrum.

    Accurate to about 1e-8 of the largest for W in float64, 1e-4 for a large one, whose Gram matrix is of float32.
    """
    wide = at_least_float32(W if W.shape[0] <= W.shape[1] else W.mT)
    with without_autocast(W):
        wide = wide if min(W.shape) >= LARGE else wide.double()
        return torch.linalg.eigvalsh(wide @ wide.mT).flip(0).clamp(min=0).double().sqrt()


def krylov_svd(W: Tensor, k: int, tolerance: float = RESIDUAL) -> tuple[Tensor, Tensor, Tensor] | None:
    """`truncated_svd` from the span of X, W^T W X, (W^T W)^2 X, ... for a random X; None where it does not converge.

    Unlike the last power alone, the whole span finds the leading vectors of flat spectra, too, such as those of random
    weights. It has converged when |W^T b - s q| is below `tolerance` times s in the mean over the k; for random weights
    1e-5 of the energy is then missing. The same W gives the same result, and the global random stream does not move.
    """
    generator = torch.Generator().manual_seed(0)
    block, eps, tiny = min(max(k // 2, 16), 128), torch.finfo(W.dtype).eps, torch.finfo(W.dtype).tiny
    noise = torch.randn(W.shape[1], block, generator=generator, dtype=W.dtype).to(W.device)
    span, image = W.new_empty(W.shape[1], 0), W.new_empty(W.shape[0], 0)  # V with orthonormal columns, and W V
    new, look = noise, 2 * k  # looks at so many columns
    while span.shape[1] + block <= min(W.shape) // 3:
        for _ in range(2):  # once would leave rounding errors of what it takes away
            new = torch.linalg.qr(new - span @ (span.mT @ new)).Q
        span, image = torch.cat([span, new], 1), torch.cat([image, W @ new], 1)
        if span.shape[1] >= look:
            look = int(1.25 * span.shape[1])
            found = _leading(W, span, image, k)
            if _relative_residual(W, *found) <= tolerance:
                return found
        new = W.mT @ image[:, -block:]
        new = new / new.norm().clamp(min=tiny) + eps * noise  # of W of low rank there is nothing new, then noise is
    return None


def _leading(W: Tensor, span: Tensor, image: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k leading singular triplets of W within the span V (m, c) of right vectors, from V and W V (n, c)."""
    gram = (image.mT @ image).double()
    vectors = torch.linalg.eigh(gram).eigenvectors[:, -k:].flip(-1).to(W.dtype)  # (c, k)
    left, triangle = torch.linalg.qr(image @ vectors)
    rotation, S, right = torch.linalg.svd(triangle)
    return left @ rotation, S, right @ (span @ vectors).mT


def _relative_residual(W: Tensor, B: Tensor, S: Tensor, Q: Tensor) -> float:
    """The root mean square over k of |W^T b - s q| / s, with s at least 1e-3 of the largest; inf for a Q askew."""
    askew = (Q @ Q.mT - torch.eye(len(S), dtype=W.dtype, device=W.device)).abs().max()
    residuals = torch.linalg.norm(W.mT @ B - Q.mT * S, dim=0)
    relative = residuals / S.clamp(min=max(1e-3 * float(S[0]), torch.finfo(W.dtype).tiny))
    return float(relative.square().mean().sqrt()) if bool(askew < ASKEW) else math.inf
