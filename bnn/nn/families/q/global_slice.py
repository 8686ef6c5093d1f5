"""A slice of the global inducing weights, which another module draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bnn._engine.draw import SHARED, Draw
from bnn.functional.gaussian import TrilPair
from bnn.functional.linalg import at_least_float32
from bnn.nn.families.q.base import QInducing


class GlobalSlice(QInducing, registered=False):
    """The layer's slice of V, the matrix of all layers' inducing weights, which the global module draws.

    The module is held in a tuple, so that it is no child of the layer: it has one place in the network, the root.
    """

    name = "globalslice"

    def __init__(self, module: nn.Module, dim: int, start: int, length: int) -> None:
        self.held = (module,)
        self.dim, self.first, self.length = dim, start, length

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return self._slice(self.held[0].mean_weights().weight)  # type: ignore[operator]

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        owner: Any = self.held[0]
        return self._slice(draw.once(owner, SHARED, owner.sample_weights, whole=True).weight)

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        return torch.zeros_like(layer._lamda, dtype=at_least_float32(layer._lamda).dtype)  # the global module's

    def _slice(self, V: Tensor) -> Tensor:
        return at_least_float32(V.narrow(self.dim - 2, self.first, self.length))
