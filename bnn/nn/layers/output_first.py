"""Layers whose weight has the outputs first: W is the weight with its other dimensions flattened, then the bias."""

from __future__ import annotations

from torch import Tensor

from bnn.functional import kernels
from bnn.nn.base import BayesianLayer, Weights


class OutputFirst(BayesianLayer):
    """Linear: weight (d_out, n). Conv: weight (c_out, c_in / groups, *kernel), as the matrix c_out x the rest."""

    @classmethod
    def to_matrix(cls, weights: Weights) -> Tensor:
        return kernels.to_matrix(*weights)

    def from_matrix(self, W: Tensor) -> Weights:
        return Weights(*kernels.from_matrix(W, self.weight_shape, self.has_bias))


def plus_square(products: Tensor, one: Tensor | float) -> Tensor:
    """Products (K, N, ...) of rows plus that of the bias's input with itself: `one` is a number, or (K, N)."""
    return products + (
        one**2 if isinstance(one, float) else one.square().reshape(*one.shape, *[1] * (products.ndim - 2))
    )
