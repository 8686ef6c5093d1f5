"""The layer type Linear."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.nn.base import Rows, Weights
from bnn.nn.matrix import OutputFirst


class Linear(OutputFirst, nn.Linear):
    """y = x W^T + b on the last dimension of x (..., in_features)."""

    plain = nn.Linear

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    def run_each(self, input: Tensor, weights: Weights) -> Tensor:
        weight, bias = weights
        k, rows = len(weight), input.reshape(len(input), -1, input.shape[-1])
        if k == 1:
            return F.linear(input, weight[0], None if bias is None else bias[0])
        if len(rows) == 1:  # all draws see the same rows: one product
            flat = F.linear(rows[0], weight.flatten(0, 1), None if bias is None else bias.flatten())
            output = flat.unflatten(1, (k, -1)).transpose(0, 1)
        elif bias is None:
            output = torch.bmm(rows, weight.mT)
        else:
            output = torch.baddbmm(bias[:, None], rows, weight.mT)
        return output.reshape(k, *input.shape[1:-1], output.shape[-1])

    def rows(self, input: Tensor) -> Rows:
        if input.ndim == 1:
            return Rows(batched=False, number=1, gram=self.d_in)
        number = math.prod(input.shape[1:-1])
        return Rows(batched=True, number=number, gram=number**2 * self.d_in)

    def project(self, input: Tensor, A: Tensor) -> Tensor:
        n = self.in_features
        rows = input.reshape(len(input), -1, n)
        return F.linear(rows, A[:, :n], A[:, n] if self.has_bias else None)

    def from_rows(self, outputs: Tensor, rows: Rows, input: Tensor) -> Tensor:
        return outputs.reshape(len(outputs), *input.shape[1:-1], outputs.shape[-1])

    def squares(self, input: Tensor) -> Tensor:
        return input.reshape(len(input), -1, self.in_features).square().sum(-1) + self.has_bias

    def gram(self, input: Tensor) -> Tensor:
        rows = input.reshape(len(input), -1, self.in_features)
        return rows @ rows.mT + self.has_bias
