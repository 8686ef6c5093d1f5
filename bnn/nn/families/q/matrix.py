"""A matrix normal: correlations between rows, and between columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair, kl_matrix_u
from bnn.functional.linalg import pack_tril, row_norms, unpack_tril
from bnn.nn.families.q.base import QInducing, eye, paper_sd


@dataclass(frozen=True)
class Matrix(QInducing):
    """A matrix normal MN(mean, T_r T_r^T, T_c T_c^T)."""

    name = "matrix"

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u} | self.spread_start(u, paper_sd(u))

    def spread_start(self, u: Tensor, sd: Tensor) -> dict[str, Tensor]:
        m_out, m_in = u.shape
        root = sd.sqrt().to(u.dtype)  # sd = T_r T_c on the diagonals: the square root each
        return {
            "_inducing_row_scale_tril": pack_tril(root * eye(m_out, u)),
            "_inducing_col_scale_tril": pack_tril(root * eye(m_in, u)),
        }

    def parameters(self, m_out: int, m_in: int) -> int:
        return m_out * m_in + (m_out * (m_out + 1) + m_in * (m_in + 1)) // 2

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_row_scale_tril, layer._inducing_col_scale_tril]

    def spread(self, layer: Any) -> TrilPair:
        """The scales T_r (M_out, M_out) and T_c (M_in, M_in)."""
        m_out, m_in = layer.inducing_mean.shape
        row, col = self.spread_of(layer)
        return unpack_tril(row, m_out), unpack_tril(col, m_in)

    def sds(self, layer: Any) -> Tensor:
        row, col = self.spread(layer)
        return torch.outer(row_norms(row), row_norms(col))

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: TrilPair, noise: Tensor, draw: Draw) -> Tensor:
        row, col = spread
        return self.mean(layer) + row @ noise @ col.mT

    def kl(self, layer: Any, spread: TrilPair, prior: TrilPair | None) -> Tensor:
        return kl_matrix_u(self.mean(layer), *spread, prior)
