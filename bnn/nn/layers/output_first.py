"""Layers whose weight has the outputs first: W is the weight with its other dimensions flattened, then the bias."""

from __future__ import annotations

import torch
from torch import Tensor

from bnn.nn.base import BayesianLayer, Weights


class OutputFirst(BayesianLayer):
    """Linear: weight (d_out, n). Conv: weight (c_out, c_in / groups, *kernel), as the matrix c_out x the rest."""

    @classmethod
    def to_matrix(cls, weights: Weights) -> Tensor:
        W = weights.weight.flatten(1)
        return W if weights.bias is None else torch.cat([W, weights.bias[:, None]], dim=1)

    def from_matrix(self, W: Tensor) -> Weights:
        bias = None
        if self.has_bias:
            W, bias = W.split((self.d_in - 1, 1), dim=-1)
            bias = bias.squeeze(-1)
        return Weights(W if len(self.weight_shape) == 2 else W.unflatten(-1, self.weight_shape[1:]), bias)


def plus_square(products: Tensor, one: Tensor | float) -> Tensor:
    """Products (K, N, ...) of rows plus that of the bias's input with itself: `one` is a number, or (K, N)."""
    return products + (
        one**2 if isinstance(one, float) else one.square().reshape(*one.shape, *[1] * (products.ndim - 2))
    )
