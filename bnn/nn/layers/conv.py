"""The layer types Conv1d, Conv2d and Conv3d."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.functional.patches import gram_multiplies, out_sizes, patch_gram, patches
from bnn.nn.base import Rows, Weights
from bnn.nn.layers.output_first import plus_square
from bnn.nn.layers.split import SplitKernel

FEW_CHANNELS = 8  # too few to fill vector registers when they come last in memory
SMALL_PATCH = 64  # entries of a patch: so few that patches are cheaper to form than outputs to reorder
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


class Convolution(SplitKernel):
    """A convolution with every option of torch: stride, padding (also "same"), padding_mode, dilation, groups.

    A row is a patch: the entries of the input that one position of the output sees.
    """

    in_channels: int
    groups: int
    _reversed_padding_repeated_twice: list[int]

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(input, weight, bias)  # type: ignore[operator]

    def run_each(self, input: Tensor, weights: Weights) -> Tensor:
        weight, bias = weights
        k = len(weight)
        if k == 1 and len(input) == 1:
            x, kernel = input.squeeze(0), weight.squeeze(0)
            kernel = kernel if channels_last(x) else kernel.contiguous()  # the output has the layout that users expect
            return self.run(x, kernel, None if bias is None else bias.squeeze(0)).unsqueeze(0)
        batched = input.ndim == len(self.kernel_size) + 3
        last = batched and (channels_last(input[0]) or input.shape[2] < FEW_CHANNELS)
        if last and math.prod(self.kernel_size) == self.groups == 1 and len(input) == k and not self._pads():
            return self._run_rows(input, weights)
        if len(input) == 1 and self.groups == 1 and batched:
            if weight[0, 0].numel() <= SMALL_PATCH:
                return self._run_patches(input[0], weights)
            return self._run_shared(input[0], weight.contiguous(), bias)
        return super().run_each(input, Weights(self._channels_last(weight) if last else weight.contiguous(), bias))

    def _channels_last(self, weight: Tensor) -> Tensor:
        """Weights (K, c_out, ...) with the channels last in memory, so that outputs have them there, too."""
        layout = CHANNELS_LAST.get(weight.ndim - 1)
        if layout is None:
            return weight.contiguous()
        return weight.flatten(0, 1).contiguous(memory_format=layout).reshape(weight.shape)

    def _pads(self) -> bool:
        return any(map(any, self._padding()))

    def _run_patches(self, input: Tensor, weights: Weights) -> Tensor:
        """All draws see the same input (N, ...) of few channels: its patches once, then one product per draw."""
        weight, bias = weights
        input, padding = self._padded(input)
        rows = patches(input, self.kernel_size, self.stride, self.dilation, padding).flatten(0, 1)  # (N p, c_in taps)
        out = out_sizes(input.shape[2:], self.kernel_size, self.stride, self.dilation, padding)
        kernel = weight.flatten(2)
        if bias is not None:  # a column of ones costs less than a bias for every output
            rows, kernel = F.pad(rows, (0, 1), value=1.0), torch.cat([kernel, bias[..., None]], dim=-1)
        output = torch.bmm(rows.expand(len(weight), -1, -1), kernel.mT)
        return output.unflatten(1, (len(input), *out)).movedim(-1, 2)  # the channels last in memory

    def _padded(self, input: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
        """The input, padded where the mode of padding is not zeros, and what is left to pad with zeros."""
        padding = self._padding()
        if self.padding_mode == "zeros":
            return input, padding
        return F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode), [(0, 0)] * len(padding)

    def _run_shared(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """All draws see the same input (N, ...): one convolution to K times the channels."""
        together = self.run(input, weight.flatten(0, 1), None if bias is None else bias.flatten())
        each = together.unflatten(1, (len(weight), -1)).movedim(1, 0)  # (K, N, c_out, *space)
        return each.movedim(2, -1).contiguous().movedim(-1, 2)  # the channels last in memory, as later layers want them

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
        if layout is None or input.shape[1] < FEW_CHANNELS:
            return input
        return input.contiguous(memory_format=layout)

    def fast_order(self, A: Tensor) -> Tensor:
        channels = self.weight_shape[1]
        if not self.has_bias:
            return A.unflatten(-1, (channels, -1)).mT.flatten(-2)
        taps, bias = A.split((A.shape[-1] - 1, 1), dim=-1)
        return torch.cat([taps.unflatten(-1, (channels, -1)).mT.flatten(-2), bias], dim=-1)

    def from_fast_order(self, W: Tensor) -> Weights:
        channels, *kernel = self.weight_shape[1:]
        bias = None
        if self.has_bias:
            W, bias = W.split((self.d_in - 1, 1), dim=-1)
            bias = bias.squeeze(-1)
        return Weights(W.unflatten(-1, (*kernel, channels)).movedim(-1, -1 - len(kernel)), bias)

    def rows(self, shape: torch.Size) -> Rows:
        space, padding = list(shape[-len(self.kernel_size) :]), self._padding()
        if self.padding_mode != "zeros":
            space, padding = [n + sum(pad) for n, pad in zip(space, padding, strict=True)], [(0, 0)] * len(space)
        out = out_sizes(space, self.kernel_size, self.stride, self.dilation, padding)
        gram = gram_multiplies(self.in_channels, space, out, self.kernel_size)
        batched, taps = len(shape) == len(self.kernel_size) + 2, math.prod(self.kernel_size)
        projected = math.prod(out[:-1]) * space[-1]
        return Rows(batched, math.prod(out), gram, taps, tuple(out), self.groups == 1, projected, self.kernel_size[-1])

    def project(self, input: Tensor, A: Weights) -> Tensor:
        T = self.run(input.flatten(0, 1), *A).flatten(2).mT
        return T.reshape(len(input), input.shape[1] * T.shape[1], T.shape[2])

    def from_rows(self, outputs: Tensor, rows: Rows, input: Tensor) -> Tensor:
        each = outputs.unflatten(1, (input.shape[1], rows.number))
        output = each.mT.unflatten(-1, rows.space)  # the channels are last in memory
        return output if channels_last(input.flatten(0, 1)) else output.contiguous()

    def to_rows(self, outputs: Tensor) -> Tensor:
        rows = outputs.flatten(3).mT  # (K, N, p, channels)
        return rows.reshape(len(rows), rows.shape[1] * rows.shape[2], rows.shape[3])

    def squares(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        ones = input.new_ones(1, 1, *self.kernel_size)
        total = self.run(input.flatten(0, 1).square().sum(1, keepdim=True), ones, None).flatten(1)
        total = total.reshape(*input.shape[:2], total.shape[1])
        return (plus_square(total, one) if self.has_bias else total).flatten(1)

    def gram(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        batch, input = input.shape[:2], input.flatten(0, 1)
        input, padding = self._padded(input)
        gram = patch_gram(input, self.kernel_size, self.stride, self.dilation, padding)
        gram = gram.reshape(*batch, *gram.shape[1:])
        return plus_square(gram, one) if self.has_bias else gram

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
