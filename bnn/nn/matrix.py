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
        if not self.has_bias:
            return Weights(W.reshape(self.weight_shape), None)
        return Weights(W[:, :-1].reshape(self.weight_shape), W[:, -1])
