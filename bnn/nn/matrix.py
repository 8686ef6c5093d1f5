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
        n = self.d_in - self.has_bias
        weight = W[..., :n].unflatten(-1, self.weight_shape[1:])
        return Weights(weight, W[..., n] if self.has_bias else None)
