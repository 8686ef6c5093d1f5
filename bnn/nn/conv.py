"""The layer types Conv1d, Conv2d and Conv3d."""

from __future__ import annotations

from torch import Tensor, nn

from bnn.nn.matrix import OutputFirst


class Convolution(OutputFirst):
    """A convolution with every option of torch: stride, padding (also "same"), padding_mode, dilation, groups."""

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(input, weight, bias)  # type: ignore[operator]


class Conv1d(Convolution, nn.Conv1d):
    """Input (N, c_in, length) or (c_in, length)."""

    plain = nn.Conv1d


class Conv2d(Convolution, nn.Conv2d):
    """Input (N, c_in, height, width) or (c_in, height, width)."""

    plain = nn.Conv2d


class Conv3d(Convolution, nn.Conv3d):
    """Input (N, c_in, depth, height, width) or (c_in, depth, height, width)."""

    plain = nn.Conv3d
