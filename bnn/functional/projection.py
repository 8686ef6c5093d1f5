"""Inducing factors from weights at hand: sigma A_r^T u A_c equals their best low-rank approximation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import standard_normal
from bnn.functional.inducing import factor


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
    if not W.is_meta and not bool(torch.isfinite(W).all()):
        raise ValueError(f"the weights to keep, {tuple(W.shape)} as a matrix, hold NaN or inf: repair them first")
    start = random_start(W.shape[0], W.shape[1], m_out, m_in, like=W.double())
    B, S, Q = truncated_svd(W.double(), k := min(m_out, m_in, *W.shape))
    z_row, z_col = start.z_row, start.z_col
    z_row[:k], z_col[:k] = B.mT, Q
    row, col = factor(z_row, d_row.double()), factor(z_col, d_col.double())
    truncated = (B * S) @ Q
    u = torch.linalg.pinv(row.A.mT) @ (truncated / sigma) @ torch.linalg.pinv(col.A)
    return Projection(*(part.to(W.dtype) for part in (z_row, z_col, u)))


def truncated_svd(W: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """B (n, k), S (k,), Q (k, m) with B S Q the best rank-k approximation of W (n, m); fast where k is small.

    For k well below both sides, by the eigenvectors of the smaller Gram matrix, unless S falls by more than 1e-6 within
    the k, which that could not resolve.
    """
    if 4 * k <= min(W.shape) and not W.is_meta:
        wide = W if W.shape[0] <= W.shape[1] else W.mT
        vectors = torch.linalg.eigh(wide @ wide.mT).eigenvectors[:, -k:].flip(-1)  # (smaller side, k)
        other, S, rotation = torch.linalg.svd(wide.mT @ vectors, full_matrices=False)
        vectors = vectors @ rotation.mT
        if bool(S[-1] > 1e-6 * S[0]):
            return (vectors, S, other.mT) if wide is W else (other, S, vectors.mT)
    B, S, Q = torch.linalg.svd(W, full_matrices=False)
    return B[:, :k], S[:k], Q[:k]
