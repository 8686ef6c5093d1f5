"""Weights as a product of two factors with independent Gaussian entries: W = A B^T, A (d_out, r), B (d_in, r).

Given means a, b and standard deviations s, t of the entries of A and B, the entries of W have

    E[W_ij]   = sum_k a_ik b_jk
    Var[W_ij] = sum_k a_ik^2 t_jk^2 + s_ik^2 b_jk^2 + s_ik^2 t_jk^2
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bnn.functional.projection import check_finite, truncated_svd


def factors_of(W: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """A (d_out, r) and B (d_in, r) whose product A B^T is the best approximation of W of rank r: U S^1/2 and V S^1/2.

    Of all factors with this product these have the least |A|^2 + |B|^2, so that they are nearest to a prior around 0.
    Columns beyond the smaller side of W are 0.
    """
    check_finite(W)
    U, S, V = truncated_svd(W, k := min(r, *W.shape))
    A, B = U * S.sqrt(), V.mT * S.sqrt()
    return F.pad(A, (0, r - k)).to(W.dtype), F.pad(B, (0, r - k)).to(W.dtype)


def factor_sd(sigma: float, r: int) -> float:
    """The sd of the entries of A and B with which those of W have the sd sigma: r sd^4 = sigma^2."""
    return float((sigma**2 / r) ** 0.25)
