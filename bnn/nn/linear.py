"""The layer type Linear."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bnn.nn.matrix import OutputFirst


class Linear(OutputFirst, nn.Linear):
    """y = x W^T + b on the last dimension of x (..., in_features)."""

    plain = nn.Linear

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)
