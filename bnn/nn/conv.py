"""The layer types Conv1d, Conv2d and Conv3d."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.functional.patches import gram_multiplies, out_sizes, patch_gram
from bnn.nn.base import Rows, Weights
from bnn.nn.matrix import OutputFirst

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


class Convolution(OutputFirst):
    """A convolution with every option of torch: stride, padding (also "same"), padding_mode, dilation, groups.

    A row is a patch: the entries of the input that one position of the output sees.
    """

    in_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: Any
    _reversed_padding_repeated_twice: list[int]

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(input, weight, bias)  # type: ignore[operator]

    def run_each(self, input: Tensor, weights: Weights) -> Tensor:
        weight, bias = weights
        k = len(weight)
        batched = input.ndim == len(self.kernel_size) + 3
        if batched and len(input) == k and channels_last(input[0]):
            if math.prod(self.kernel_size) == 1 and self.groups == 1 and not any(self._reversed_padding_repeated_twice):
                return self._run_rows(input, weights)
            weight = self.fast_layout(weight.flatten(0, 1)).unflatten(0, weight.shape[:2])
            weights = Weights(weight, bias)
        if k == 1:
            return self.run(input[0], weight[0], None if bias is None else bias[0])[None]
        if (
            len(input) == 1 and self.groups == 1
        ):  # all draws see the same input: one convolution to K times the channels
            channels = input.ndim - len(self.kernel_size) - 2  # the dimension of channels in one draw's input
            together = self.run(input[0], weight.flatten(0, 1), None if bias is None else bias.flatten())
            if channels_last(together):  # (N, *space, K, c_out) in memory, to (K, N, *space, c_out)
                last = together.movedim(1, -1).unflatten(-1, (k, -1)).movedim(-2, 0)
                return last.contiguous().movedim(-1, 2)
            return together.unflatten(channels, (k, -1)).movedim(channels, 0)
        return super().run_each(input, weights)

    def _run_rows(self, input: Tensor, weights: Weights) -> Tensor:
        """1 x 1 kernels: a product of matrices per draw, for inputs (K, N, ...) with the channels last in memory."""
        weight, bias = weights
        steps: Any = (Ellipsis, *(slice(None, None, s) for s in self.stride))
        strided = input[steps]
        rows = strided.flatten(3).movedim(2, -1).flatten(1, 2)  # (K, N p, c_in)
        kernel = weight.flatten(2).mT
        output = torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias[:, None], rows, kernel)
        n, space = strided.shape[1], strided.shape[3:]
        return output.unflatten(1, (n, *space)).movedim(-1, 2)

    def fast_layout(self, input: Tensor) -> Tensor:
        layout = CHANNELS_LAST.get(input.ndim)
        return input if layout is None else input.contiguous(memory_format=layout)

    def fast_order(self, A: Tensor) -> Tensor:
        n, channels = self.d_in - self.has_bias, self.weight_shape[1]
        taps = A[..., :n].unflatten(-1, (channels, -1)).mT.flatten(-2)
        return torch.cat([taps, A[..., n:]], dim=-1) if self.has_bias else taps

    def from_fast_order(self, W: Tensor) -> Weights:
        n, (channels, *kernel) = self.d_in - self.has_bias, self.weight_shape[1:]
        weight = W[..., :n].unflatten(-1, (*kernel, channels)).movedim(-1, -1 - len(kernel))
        return Weights(weight, W[..., n] if self.has_bias else None)

    def rows(self, input: Tensor) -> Rows:
        space, padding = list(input.shape[-len(self.kernel_size) :]), self._padding()
        if self.padding_mode != "zeros":
            space, padding = [n + sum(pad) for n, pad in zip(space, padding, strict=True)], [(0, 0)] * len(space)
        out = out_sizes(space, self.kernel_size, self.stride, self.dilation, padding)
        gram = gram_multiplies(self.in_channels, space, out, self.kernel_size)
        batched, taps = input.ndim == len(self.kernel_size) + 2, math.prod(self.kernel_size)
        return Rows(batched, math.prod(out), gram, taps, tuple(out), whole=self.groups == 1)

    def project(self, input: Tensor, A: Tensor) -> Tensor:
        weights = self.from_matrix(A)
        return self.run(input, *weights).flatten(2).mT

    def from_rows(self, outputs: Tensor, rows: Rows, input: Tensor) -> Tensor:
        output = outputs.mT.unflatten(-1, rows.space)  # the channels are last in memory
        return output if channels_last(input) else output.contiguous()

    def squares(self, input: Tensor) -> Tensor:
        ones = input.new_ones(1, 1, *self.kernel_size)
        total = self.run(input.square().sum(1, keepdim=True), ones, None)
        return total.flatten(1) + self.has_bias

    def gram(self, input: Tensor) -> Tensor:
        padding = self._padding()
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = [(0, 0)] * len(padding)
        gram = patch_gram(input, self.kernel_size, self.stride, self.dilation, padding)
        return gram + 1 if self.has_bias else gram

    def _padding(self) -> list[tuple[int, int]]:
        """Padding before and after, for each dimension of space."""
        pads = self._reversed_padding_repeated_twice
        return [(pads[i], pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]


def channels_last(x: Tensor) -> bool:
    """Whether x has its channels last in memory, and would not pass for contiguous."""
    layout = CHANNELS_LAST.get(x.ndim)
    return layout is not None and x.is_contiguous(memory_format=layout) and not x.is_contiguous()


class Conv1d(Convolution, nn.Conv1d):
    """Input (N, c_in, length) or (c_in, length)."""

    plain = nn.Conv1d


class Conv2d(Convolution, nn.Conv2d):
    """Input (N, c_in, height, width) or (c_in, height, width)."""

    plain = nn.Conv2d


class Conv3d(Convolution, nn.Conv3d):
    """Input (N, c_in, depth, height, width) or (c_in, depth, height, width)."""

    plain = nn.Conv3d
