"""Ensemble-U: a few points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnn._common.checks import check_size
from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair, standard_normal
from bnn.functional.linalg import at_least_float32
from bnn.nn.families.q.base import QInducing

MEMBER_NOISE = 0.1  # sd of each member around the shared start, as in the paper, whose start is N(0, 1)


@dataclass(frozen=True)
class Members(QInducing):
    """K points; all layers of a forward show the same member. No KL on U, as in the paper."""

    name = "ensemble"

    members: int = 8
    around: bool | None = None  # members start around weights to keep: noise in units of U's size, and with mean 0

    def __post_init__(self) -> None:
        check_size("members", self.members)

    @classmethod
    def of(cls, options: Any, **own: Any) -> QInducing:
        """As many as `ensemble_size`, around the weights that `init` keeps."""
        return cls(**({"members": options.ensemble_size, "around": options.init == "weights"} | own))

    def start(self, u: Tensor) -> dict[str, Tensor]:
        noise = MEMBER_NOISE * standard_normal(self.members, *u.shape, like=u)
        if self.around:
            rms = u.square().mean().sqrt()
            noise = torch.where(rms > 0, rms, 1.0) * (noise - noise.mean(0))
        return {"inducing_mean": u + noise}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean).mean(0)

    def sds(self, layer: Any) -> Tensor:
        members: Tensor = layer.inducing_mean  # (K, M_out, M_in)
        return members.double().std(0, correction=0)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        members = at_least_float32(layer.inducing_mean)
        return members.index_select(0, draw.member(layer, self.members).to(members.device))

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        zero: Tensor = layer.inducing_mean.new_zeros((), dtype=at_least_float32(layer.inducing_mean).dtype)
        return zero
