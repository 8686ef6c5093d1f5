"""The layer type Linear."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.functional.linalg import squared_norm
from bnn.nn.base import Rows, Weights
from bnn.nn.layers.output_first import OutputFirst, plus_square

FEW_ROWS = 64  # up to which the outputs of all draws may lie interleaved in memory


class Linear(OutputFirst, nn.Linear):
    """y = x W^T + b on the last dimension of x (..., in_features)."""

    plain = nn.Linear

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    def run_each(self, input: Tensor, weights: Weights) -> Tensor:
        weight, bias = weights
        k = len(weight)
        if k == 1:
            return F.linear(input.squeeze(0), weight.squeeze(0), None if bias is None else bias.squeeze(0)).unsqueeze(0)
        rows = input.reshape(len(input), math.prod(input.shape[1:-1]), input.shape[-1])
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()  # they come as columns of one W
        if len(rows) == 1 and rows.shape[1] <= FEW_ROWS:  # all draws see the same rows: one product
            flat = F.linear(rows[0], weight.flatten(0, 1), None if bias is None else bias.flatten())
            output = flat.unflatten(1, (k, -1)).transpose(0, 1)
        elif bias is None:
            output = torch.bmm(rows.expand(k, -1, -1), weight.mT)
        else:
            output = torch.baddbmm(bias[:, None], rows.expand(k, -1, -1), weight.mT)
        return output.reshape(k, *input.shape[1:-1], output.shape[-1])

    def back_weight(self, C: Tensor) -> Tensor:
        return C

    def run_pair(self, input: Tensor, first: Weights, second: Weights) -> Tensor:
        return F.linear(F.linear(input, *first), *second)

    def rows(self, shape: torch.Size) -> Rows:
        if len(shape) == 1:
            return Rows(batched=False, number=1, gram=self.d_in)
        number = math.prod(shape[1:-1])
        return Rows(batched=True, number=number, gram=number**2 * self.d_in)

    def project(self, input: Tensor, A: Weights) -> Tensor:
        return self.to_rows(F.linear(input, *A))

    def from_rows(self, outputs: Tensor, rows: Rows, input: Tensor) -> Tensor:
        return outputs if input.ndim == 3 else outputs.reshape(len(outputs), *input.shape[1:-1], outputs.shape[-1])

    def to_rows(self, outputs: Tensor) -> Tensor:
        return outputs if outputs.ndim == 3 else outputs.flatten(1, -2)

    def squares(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        squares = squared_norm(input)
        squares = plus_square(squares, one) if self.has_bias else squares
        return squares if squares.ndim == 2 else squares.flatten(1)

    def gram(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        rows = input.reshape(*input.shape[:2], math.prod(input.shape[2:-1]), input.shape[-1])
        gram = rows @ rows.mT
        return plus_square(gram, one) if self.has_bias else gram
