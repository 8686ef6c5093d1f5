"""The second moments of a plain layer's rows: the vectors that its weights multiply."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.functional.linalg import at_least_float32
from bnn.functional.low_rank import Moments
from bnn.functional.patches import patches
from bnn.nn.base import Weights

BYTES = 2**26  # of patches held at a time
FEW = 2  # rows per entry; up to so many are added up in double precision


class Sums:
    """Sums of x x^T, y x^T and |y|^2 over the rows of all inputs that were added, for a Linear or a convolution."""

    def __init__(self, layer: nn.Module, weights: Weights) -> None:
        self.layer, self.bias = layer, weights.bias is not None
        self.groups = int(getattr(layer, "groups", 1))
        P, c_out = weights.weight[0].numel() + self.bias, len(weights.weight)
        self.S = weights.weight.new_zeros(self.groups, P, P, dtype=torch.double)
        self.K = weights.weight.new_zeros(self.groups, c_out // self.groups, P, dtype=torch.double)
        self.x, self.y = self.S[:, 0] * 0, self.K[..., 0] * 0  # sums of x (groups, P) and y (groups, c_out / groups)
        self.energy, self.rows = 0.0, 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """Adds a batch of inputs of the layer, and of targets in the shape of its outputs."""
        if isinstance(self.layer, nn.Linear):
            self._add(x.reshape(1, -1, x.shape[-1]), y.reshape(1, -1, y.shape[-1]))
            return
        if x.ndim == len(self.layer.kernel_size) + 1:  # type: ignore[arg-type]
            x, y = x[None], y[None]
        size = max(1, BYTES // max(1, _patch_bytes(self.layer, x)))
        for part, target in zip(x.split(size), y.split(size), strict=True):
            rows = _patches(self.layer, part).flatten(0, 1)
            self._add(*(each.unflatten(-1, (self.groups, -1)).transpose(0, 1) for each in (rows, _rows(target))))

    def _add(self, x: Tensor, y: Tensor) -> None:
        """Rows (groups, n, P) and targets (groups, n, c_out / groups)."""
        # With fewer rows than entries S has no full rank, and rounding errors of float32 would make it indefinite.
        x = x.double() if x.shape[1] < FEW * x.shape[2] else at_least_float32(x)
        x, y = F.pad(x, (0, 1), value=1.0) if self.bias else x, y.to(x)
        self.rows += x.shape[1]
        self.S += x.mT @ x
        self.K += y.mT @ x
        self.x += x.sum(1)
        self.y += y.sum(1)
        self.energy += float(y.double().square().sum())

    def plus(self, other: Sums) -> Sums:
        """The sums over the rows of both."""
        total = copy.copy(self)
        for name in ("S", "K", "x", "y", "energy", "rows"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def moments(self) -> Moments:
        """All of them, as means over the rows."""
        n = max(self.rows, 1)
        return Moments(self.S / n, self.K / n, self.energy / n)

    def means(self) -> tuple[Tensor, Tensor]:
        """E[x] (groups, P) and E[y] (groups, c_out / groups)."""
        n = max(self.rows, 1)
        return self.x / n, self.y / n


def in_halves(layer: nn.Module, weights: Weights, pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Sums, Sums]:
    """The sums over every other input of each batch (x, y), and over those between."""
    halves = Sums(layer, weights), Sums(layer, weights)
    single = 1 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 1  # type: ignore[arg-type]
    for x, y in pairs:
        if x.ndim == single:  # one input, not in a batch
            halves[0].add(x, y)
            continue
        for i, half in enumerate(halves):
            if len(x) > i:
                half.add(x[i::2], y[i::2])
    return halves


def _rows(y: Tensor) -> Tensor:
    """Outputs (N, channels, *space) as (N p, channels)."""
    return y.flatten(2).mT.flatten(0, 1)


def _patches(layer: Any, x: Tensor) -> Tensor:
    """The patches (N, p, c_in taps) of inputs (N, c_in, *space)."""
    pads = layer._reversed_padding_repeated_twice
    padding = [(pads[i], pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]
    if layer.padding_mode != "zeros":
        x, padding = F.pad(x, pads, mode=layer.padding_mode), [(0, 0)] * len(padding)
    return patches(x.contiguous(), layer.kernel_size, layer.stride, layer.dilation, padding)


def _patch_bytes(layer: Any, x: Tensor) -> int:
    """Of the patches of one input, at most: as if nothing were strided."""
    taps = 1
    for size, stride in zip(layer.kernel_size, layer.stride, strict=True):
        taps *= max(1, -(-size // stride))
    return x[0].numel() * taps * max(4, x.element_size())
