"""The matrix normal MN(M, T_r T_r^T, T_c T_c^T) over W (n, m): W = M + T_r E T_c^T, Cov[W_ij, W_kl] = U_ik V_jl.

A scale T is a lower triangle (n, n), or its diagonal (n,) where rows (or columns) are independent.
"""

from __future__ import annotations

import torch
from torch import Tensor


def spread(row: Tensor, noise: Tensor, col: Tensor) -> Tensor:
    """T_r E T_c^T for standard normals E (..., n, m)."""
    left = row[:, None] * noise if row.ndim == 1 else row @ noise
    return left * col if col.ndim == 1 else left @ col.mT


def spread_rows(noise: Tensor, row: Tensor) -> Tensor:
    """T_r e for every vector e of the last dimension of noise (..., n)."""
    return noise * row if row.ndim == 1 else noise @ row.mT


def over_columns(col: Tensor, sds: Tensor) -> Tensor:
    """diag(sds)^-1 T_c: the scale of columns that were divided by `sds` (m,)."""
    return col / sds if col.ndim == 1 else col / sds[:, None]


def standard_deviations(row: Tensor, col: Tensor) -> Tensor:
    """The sds (n, m) of all entries."""
    return torch.outer(*(one if one.ndim == 1 else one.square().sum(1).sqrt() for one in (row, col)))


def kl_to_standard(mean: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """KL[MN(mean, T_r T_r^T, T_c T_c^T) || N(0, I)] for mean (n, m), a scalar.

    1/2 [ |T_r|^2 |T_c|^2 + |mean|^2 - n m ] - m log det T_r - n log det T_c
    """
    n, m = mean.shape
    fit = row.square().sum() * col.square().sum() + mean.square().sum()
    return 0.5 * (fit - n * m) - m * _log_det(row) - n * _log_det(col)


def _log_det(scale: Tensor) -> Tensor:
    return (scale if scale.ndim == 1 else scale.diagonal()).log().sum()
