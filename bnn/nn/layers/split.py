"""Convolutions whose kernel can be split: two convolutions, kh x 1 to M_in channels, then 1 x kw to the outputs.

The arrangement of the weights as a matrix is in `bnn.functional.kernels`; the last dimension of the taps is "kw" here,
all others are "kh". With t = conv_{kh x 1}(X; A_c), padded in w as X is, and a_c / sqrt(kw) added everywhere where
there is a bias (the last column a_c of A_c), y = conv_{1 x kw}(t; C): a row of the output sees kw neighbours of t.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn.functional import kernels
from bnn.functional.draws import mean_rows
from bnn.functional.patches import Pad, by_pixels, neighbours, out_sizes, patch_gram
from bnn.nn.base import Weights
from bnn.nn.layers.output_first import OutputFirst

SMALL_PRODUCT = 2**23  # multiplies of a draw: up to which one product of K matrices is faster than K convolutions
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by the dimensions of space


class SplitKernel(OutputFirst):
    """A convolution that knows both arrangements of its kernel."""

    splits = True

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: Any

    def _padding(self) -> list[Pad]:
        """Padding before and after, for each dimension of space."""
        raise NotImplementedError

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
        if A.bias is not None:  # which is there in the padding, too
            T = (F.pad(T, (0, 0, *last)) if any(last) else T) + A.bias
        return T.unflatten(0, input.shape[:2])

    def back_weight(self, C: Tensor) -> Tensor:
        taps, ones = len(C) // self.d_out, [1] * (len(self.kernel_size) - 1)
        return C.reshape(self.d_out, *ones, taps, C.shape[-1]).movedim(-1, 1)

    def run_pair(self, input: Tensor, first: Weights, second: Weights) -> Tensor:
        run = CONVOLUTIONS[len(self.kernel_size)]
        if first.weight.shape[2:] == self.kernel_size:  # in the paper's arrangement t has all taps in it
            return run(self.run(input, *first), *second)
        x, padding = self._padded(input)
        if any(before != after for before, after in padding):  # "same" with an even kernel
            x, padding = F.pad(x, [n for pad in reversed(padding) for n in pad]), [(0, 0)] * len(padding)
        *rest, last = (before for before, _ in padding)
        (*strides, stride), (*dilations, dilation), ones = self.stride, self.dilation, [1] * len(rest)
        t = run(x, *first, (*strides, 1), (*rest, 0), (*dilations, 1))
        return run(t, *second, (*ones, stride), (*[0] * len(rest), last), (*ones, dilation))

    def _left_to_pad(self) -> Pad:
        """What zeros are missing in w: padding in other modes, and with a bias, is part of T."""
        return (0, 0) if self.has_bias or self.padding_mode != "zeros" else self._padding()[-1]

    def _with_zeros(self, T: Tensor) -> Tensor:
        """T (..., w, M) with all its padding."""
        missing = self._left_to_pad()
        return F.pad(T, (0, 0, *missing)) if any(missing) else T

    def side_by_side(self, T: Tensor) -> Tensor:
        taps = neighbours(self._with_zeros(T), self.kernel_size[-1], self.stride[-1], self.dilation[-1])
        return torch.cat(taps, dim=-1).flatten(1, -2)

    def sum_of_neighbours(self, values: Tensor) -> Tensor:
        taps = neighbours(self._with_zeros(values[..., None]), self.kernel_size[-1], self.stride[-1], self.dilation[-1])
        return functools.reduce(torch.add, taps).flatten(1)

    def residual_gram(self, input: Tensor, T: Tensor) -> Tensor | None:
        x, padding = self._padded(input.flatten(0, 1))
        out = out_sizes(x.shape[2:], self.kernel_size, self.stride, self.dilation, padding)
        if self.has_bias or not by_pixels(x.shape[2:], out, self.kernel_size):
            return None
        less = T.flatten(0, 1)
        gram = patch_gram(x, self.kernel_size, self.stride, self.dilation, padding, less)
        return gram.unflatten(0, input.shape[:2])

    def taps_of(self, L: Tensor, at: tuple[int, ...]) -> Tensor:
        rows = self._with_zeros(L.unflatten(2, at))
        taps = neighbours(rows, self.kernel_size[-1], self.stride[-1], self.dilation[-1])
        return torch.stack(taps, dim=-1).flatten(-2).flatten(2, -2)

    def from_neighbours(self, T: Tensor, C: Tensor) -> Tensor:
        n, space = T.shape[1], len(self.kernel_size)
        if len(T) == len(C) > 1 and math.prod(T.shape[1:]) * C.shape[1] <= SMALL_PRODUCT:
            return mean_rows(self.side_by_side(T), C.reshape(len(C), self.d_out, -1))
        before, after = self._left_to_pad()
        if before != after:
            T, before = self._with_zeros(T), 0
        flat = C.reshape(len(C), self.d_out, *[1] * (space - 1), self.kernel_size[-1], -1).movedim(-1, 2)
        ones, padding = [1] * (space - 1), (*[0] * (space - 1), before)
        stride, dilation = (*ones, self.stride[-1]), (*ones, self.dilation[-1])

        def run(T: Tensor, kernel: Tensor) -> Tensor:
            """(N, p, d_out) or, for K kernels together, (N, p, K d_out)."""
            output = CONVOLUTIONS[space](T.movedim(-1, 1), kernel, None, stride, padding, dilation)
            return output.flatten(2).mT

        if len(C) == 1:  # all draws have the same kernel
            return run(T.flatten(0, 1), flat[0]).reshape(len(T), -1, self.d_out)
        if len(T) == 1:  # all draws see the same
            return run(T[0], flat.flatten(0, 1)).flatten(0, 1).unflatten(-1, (len(C), -1)).movedim(1, 0)
        outputs = [run(t, kernel) for t, kernel in zip(T, flat, strict=True)]
        return torch.stack(outputs).reshape(len(C), n * outputs[0].shape[1], self.d_out)
