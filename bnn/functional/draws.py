"""Ways to draw from q(W|u) that are faster than the textbook rule of `bnn.functional.inducing`, and as exact."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import standard_normal
from bnn.functional.inducing import Factors


class ColumnNoise(NamedTuple):
    """Noise of the first stage, U_c given u."""

    E2: Tensor  # (..., d_out, M_in)
    E3: Tensor  # (..., M_out, M_in)


class DenseNoise(NamedTuple):
    """Noise of the second stage, W given U_c."""

    E1: Tensor  # (..., d_out, d_in)
    E4: Tensor  # (..., d_out, M_in)


def column_noise(row: Factors, col: Factors, *batch: int, generator: torch.Generator | None = None) -> ColumnNoise:
    """Noise for `draw_columns`, with leading batch dimensions."""
    (m_out, d_out), m_in = row.A.shape, len(col.A)
    shapes = (d_out, m_in), (m_out, m_in)
    return ColumnNoise(*(standard_normal(*batch, *s, like=row.A, generator=generator) for s in shapes))


def dense_noise(row: Factors, col: Factors, *batch: int, generator: torch.Generator | None = None) -> DenseNoise:
    """Noise for `draw_dense`, with leading batch dimensions."""
    d_out, (m_in, d_in) = row.A.shape[1], col.A.shape
    shapes = (d_out, d_in), (d_out, m_in)
    return DenseNoise(*(standard_normal(*batch, *s, like=row.A, generator=generator) for s in shapes))


def draw_columns(u: Tensor, row: Factors, lamda: Tensor | float, sigma: float, noise: ColumnNoise) -> Tensor:
    """First stage: C (..., d_out, M_in), the inducing columns given u, which identify the draw.

    C = sigma [ A_r^T u + lamda (E2 - A_r^T (A_r E2 + R_r E3)) ]
    """
    E2, E3 = noise
    return sigma * (lamda * E2 + row.A.mT @ (u - lamda * (row.A @ E2 + row.R @ E3)))


def draw_dense(C: Tensor, col: Factors, lamda: Tensor | float, sigma: float, noise: DenseNoise) -> Tensor:
    """Second stage: the weight matrix W (..., d_out, d_in) given C.

    W = C A_c + lamda sigma (E1 - (E1 A_c^T + E4 R_c^T) A_c)

    The two stages together have the covariance of q(W|u): P_c (x) (I - P_r) + (I - P_c) (x) I = I - P_c (x) P_r.
    """
    E1, E4 = noise
    scale = lamda * sigma
    return scale * E1 + (C - scale * (E1 @ col.A.mT + E4 @ col.R.mT)) @ col.A
