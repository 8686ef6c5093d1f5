"""FCG-U: a full covariance over all entries. For small U."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair, kl_full_u
from bnn.functional.linalg import at_least_float32, pack_tril, row_norms, triangle_unit, unpack_tril
from bnn.nn.families.q.base import QInducing, eye, paper_sd


@dataclass(frozen=True)
class Full(QInducing):
    """N(mean, T T^T) over vec U, row-major. The strict lower part of T is trained in units of `triangle_unit`."""

    name = "full"

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u.flatten()} | self.spread_start(u, paper_sd(u))

    def spread_start(self, u: Tensor, sd: Tensor) -> dict[str, Tensor]:
        return {"_inducing_scale_tril": pack_tril(sd.to(u.dtype) * eye(u.numel(), u))}

    def parameters(self, m_out: int, m_in: int) -> int:
        n = m_out * m_in
        return n + n * (n + 1) // 2

    def covariance_size(self, m_out: int, m_in: int) -> int:
        return m_out * m_in

    def units(self, layer: Any) -> dict[str, Tensor | float]:
        packed, n = layer._inducing_scale_tril, layer.inducing_mean.numel()
        units = torch.full_like(packed, triangle_unit(n))
        units[:n] = 1.0  # the diagonal, through softplus
        return {"_inducing_scale_tril": units}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean).reshape(len(layer.z_row), len(layer.z_col))

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_scale_tril]

    def spread(self, layer: Any) -> Tensor:
        """The scale T (M_out M_in, M_out M_in)."""
        n = layer.inducing_mean.numel()
        return unpack_tril(layer._inducing_scale_tril, n, triangle_unit(n))

    def sds(self, layer: Any) -> Tensor:
        return row_norms(self.spread(layer))

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: Tensor, noise: Tensor, draw: Draw) -> Tensor:
        mean = self.mean(layer)
        return mean + (noise @ spread.mT).unflatten(1, mean.shape)

    def kl(self, layer: Any, spread: Tensor, prior: TrilPair | None) -> Tensor:
        return kl_full_u(self.mean(layer), spread, prior)
