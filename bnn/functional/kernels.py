"""A convolution's weights as a matrix: the paper's c_out x (c_in kh kw), or split, (c_out kw) x (c_in kh).

Any arrangement of the weights as entries, or orthonormal combinations of entries, of a matrix W with independent prior
entries is a legal W. Split sends the last dimension of the taps to the rows: a row is (o, kw), a column (c, kh), the
last index fastest (Conv1d: (o, k), (c); Conv3d: (o, kw), (c, kd, kh)), c within its group. A rank then costs
c_out kw + c_in kh parameters instead of c_out + c_in kh kw. A bias is the last column: its input is 1 / sqrt(kw) in
every tap, so that bias_o = kw^-1/2 sum_b W[(o, b), last] has the prior of an entry.

Shapes here are those of a plain layer's weight, (c_out, c_in / groups, *kernel), or (d_out, d_in) of a Linear, which
has one arrangement only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KERNELS = ("paper", "split")


def settled_kernel(kernel: str, shape: Sequence[int]) -> str:
    """The arrangement that `kernel` ("paper", "split" or "auto") means for a weight of this shape.

    "auto" is split where that takes fewer parameters per rank: kw > 1 and c_out < (c_in / groups) kh. With a single
    last tap both are the same matrix, which is then called the paper's.
    """
    if kernel == "paper" or len(shape) < 3 or shape[-1] == 1:
        return "paper"
    if kernel == "split":
        return "split"
    return "split" if shape[0] < math.prod(shape[1:-1]) else "paper"


def matrix_shape(shape: Sequence[int], bias: bool, kernel: str = "paper") -> tuple[int, int]:
    """The shape of W, the column of a bias counted; "auto" is settled.

    >>> matrix_shape((64, 128, 3, 3), bias=False), matrix_shape((64, 128, 3, 3), bias=True, kernel="split")
    ((64, 1152), (192, 385))
    """
    if settled_kernel(kernel, shape) == "split":
        return shape[0] * shape[-1], math.prod(shape[1:-1]) + bias
    return shape[0], math.prod(shape[1:]) + bias


def weight_count(shape: Sequence[int], bias: bool) -> int:
    """How many weights the layer has; with a bias, W has more entries where it is split."""
    return math.prod(shape) + bias * shape[0]


def to_matrix(weight: Tensor, bias: Tensor | None, kernel: str = "paper") -> Tensor:
    """W from the weights of a plain layer."""
    if settled_kernel(kernel, weight.shape) == "paper":
        W = weight.flatten(1)
        return W if bias is None else torch.cat([W, bias[:, None]], dim=1)
    taps = weight.shape[-1]
    W = weight.movedim(-1, 1).flatten(2).flatten(0, 1)  # (c_out kw, c kh)
    if bias is None:
        return W
    return torch.cat([W, (bias / math.sqrt(taps)).repeat_interleave(taps)[:, None]], dim=1)


def from_matrix(W: Tensor, shape: Sequence[int], bias: bool, kernel: str = "paper") -> tuple[Tensor, Tensor | None]:
    """The inverse of `to_matrix`, for W (..., rows, columns): weight (..., *shape) and bias (..., c_out) or None."""
    column = None
    if bias:
        W, column = W.split((W.shape[-1] - 1, 1), dim=-1)
        column = column.squeeze(-1)
    if settled_kernel(kernel, shape) == "paper":
        return (W if len(shape) == 2 else W.unflatten(-1, tuple(shape[1:]))), column
    c_out, *columns, taps = shape
    weight = W.unflatten(-2, (c_out, taps)).unflatten(-1, tuple(columns)).movedim(-1 - len(columns), -1)
    # movedim: (..., c_out, kw, c, *rest) to (..., c_out, c, *rest, kw)
    return weight, None if column is None else column.unflatten(-1, (c_out, taps)).sum(-1) / math.sqrt(taps)
