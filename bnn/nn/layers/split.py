"""Convolutions whose kernel can be split: two convolutions, kh x 1 to M_in channels, then 1 x kw to the outputs.

The arrangement of the weights as a matrix is in `bnn.functional.kernels`; the last dimension of the taps is "kw" here,
all others are "kh". With t = conv_{kh x 1}(X; A_c), padded in w as X is, and a_c / sqrt(kw) added everywhere where
there is a bias (the last column a_c of A_c), y = conv_{1 x kw}(t; C): a row of the output sees kw neighbours of t.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from bnn.functional import kernels
from bnn.functional.patches import Pad, side_by_side
from bnn.nn.base import Weights
from bnn.nn.layers.output_first import OutputFirst

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by the dimensions of space


class SplitKernel(OutputFirst):
    """A convolution that knows both arrangements of its kernel."""

    splits = True

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def _padded(self, input: Tensor) -> tuple[Tensor, list[Pad]]:
        """The input, padded where the mode of padding is not zeros, and what is left to pad with zeros."""
        raise NotImplementedError

    @classmethod
    def to_split(cls, weights: Weights) -> Tensor:
        return kernels.to_matrix(*weights, "split")

    def from_split(self, W: Tensor) -> Weights:
        return Weights(*kernels.from_matrix(W, self.weight_shape, self.has_bias, "split"))

    def from_fast_split(self, W: Tensor) -> Weights:
        c_out, channels, *rest, taps = self.weight_shape
        weight, bias = kernels.from_matrix(W, (c_out, *rest, channels, taps), self.has_bias, "split")
        return Weights(weight.movedim(-2, -2 - len(rest)), bias)

    def split_projection(self, A: Tensor) -> Weights:
        columns = self.weight_shape[1:-1]
        if not self.has_bias:
            return Weights(A.unflatten(-1, (*columns, 1)), None)
        A, bias = A.split((A.shape[-1] - 1, 1), dim=-1)
        return Weights(A.unflatten(-1, (*columns, 1)), bias.squeeze(-1) / math.sqrt(self.kernel_size[-1]))

    def project_split(self, input: Tensor, A: Weights) -> Tensor:
        x, padding = self._padded(input.flatten(0, 1))
        *rest, last = padding
        if any(before != after for before, after in rest):  # "same" with an even kernel
            x, rest = F.pad(x, [0, 0, *(n for pad in reversed(rest) for n in pad)]), [(0, 0)] * len(rest)
        before = (*(pad[0] for pad in rest), 0)
        stride, dilation = (*self.stride[:-1], 1), (*self.dilation[:-1], 1)
        run = CONVOLUTIONS[len(stride)]
        T = run(x, A.weight, None, stride, before, dilation).movedim(1, -1)
        T = F.pad(T, (0, 0, *last)) if any(last) else T
        T = T if A.bias is None else T + A.bias
        return T.unflatten(0, input.shape[:2])

    def side_by_side(self, T: Tensor) -> Tensor:
        return side_by_side(T, self.kernel_size[-1], self.stride[-1], self.dilation[-1]).flatten(1, -2)
