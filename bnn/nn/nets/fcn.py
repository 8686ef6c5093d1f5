"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from .chain import Chain, Nonlinearity, check_sizes, nonlinearity_class, placement


class FCN(Chain):
    """Linear layers with a nonlinearity between them: (batch, sizes[0]) to (batch, sizes[-1]).

    The children are `Linear{i}`, `BN{i}` if `bn`, and `Nonlinarity{i}` (sic: checkpoints carry this spelling) except
    after the last layer.

    Args:
        sizes: widths from input to output, at least two.
        nonlinearity: name of a class in `torch.nn`, or a class.
        bn: batch normalisation after every linear layer, the last one included.
        **linear: further arguments of `nn.Linear`; `bias` defaults to `not bn`, which has a shift of its own.

    >>> FCN([4, 50, 3], "Tanh")
    FCN(
      (Linear0): Linear(in_features=4, out_features=50, bias=True)
      (Nonlinarity0): Tanh()
      (Linear1): Linear(in_features=50, out_features=3, bias=True)
    )
    """

    def __init__(
        self, sizes: Sequence[int], nonlinearity: Nonlinearity = "ReLU", bn: bool = False, **linear: Any
    ) -> None:
        check_sizes("sizes", sizes, len(sizes))
        activation = nonlinearity_class(nonlinearity)
        linear = {"bias": not bn, **linear}
        super().__init__()
        last = len(sizes) - 2
        for i in range(len(sizes) - 1):
            self.add_module(f"Linear{i}", nn.Linear(sizes[i], sizes[i + 1], **linear))
            if bn:
                self.add_module(f"BN{i}", nn.BatchNorm1d(sizes[i + 1], **placement(linear)))
            if i != last:
                self.add_module(f"Nonlinarity{i}", activation())
