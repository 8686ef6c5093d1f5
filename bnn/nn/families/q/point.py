"""A point: the MAP estimate of U."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair, whiten
from bnn.nn.families.q.base import QInducing, paper_sd, raw_sds


@dataclass(frozen=True)
class Point(QInducing):
    """A MAP estimate of U (`max_sd_u=0`): charges -log N(u; 0, I) = |u|^2 / 2 up to a constant."""

    name = "point"
    is_point = True

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {"_inducing_sd": raw_sds(u, paper_sd(u))}  # so that state dicts have the names of `diagonal`

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        mean = self.mean(layer)
        return mean.expand(draw.count, *mean.shape)

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        return 0.5 * whiten(self.mean(layer), prior).square().sum()
