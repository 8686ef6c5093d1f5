"""FFG-U: independent entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair, kl_diagonal_u
from bnn.functional.linalg import positive
from bnn.nn.families.q.base import QInducing, paper_sd, raw_sds
from bnn.nn.families.q.point import Point


@dataclass(frozen=True)
class Diagonal(QInducing):
    """Independent entries N(mean_ij, sd_ij^2), sd <= max_sd."""

    name = "diagonal"
    takes_cap = True
    scales = ("_inducing_sd",)

    max_sd: float | None = None

    @classmethod
    def of(cls, options: Any, **own: Any) -> QInducing:
        """Capped by `max_sd_u`; a point where that is 0."""
        cap = own.get("max_sd", options.max_sd_u)
        return Point() if cap == 0 else cls(cap)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u} | self.spread_start(u, paper_sd(u))

    def spread_start(self, u: Tensor, sd: Tensor) -> dict[str, Tensor]:
        return {"_inducing_sd": raw_sds(u, sd, self.max_sd)}

    def parameters(self, m_out: int, m_in: int) -> int:
        return 2 * m_out * m_in

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_sd]

    def scale(self, layer: Any) -> tuple[Tensor, float | None]:
        return layer._inducing_sd, self.max_sd

    def spread(self, layer: Any) -> Tensor:
        return positive(layer._inducing_sd, self.max_sd)

    def sds(self, layer: Any) -> Tensor:
        return self.spread(layer)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: Tensor, noise: Tensor, draw: Draw) -> Tensor:
        return torch.addcmul(self.mean(layer), spread, noise)

    def kl(self, layer: Any, spread: Tensor, prior: TrilPair | None) -> Tensor:
        return kl_diagonal_u(self.mean(layer), spread, prior)
