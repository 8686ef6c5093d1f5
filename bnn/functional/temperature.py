"""The NLL of a mixture of K softmaxes as a function of one inverse temperature, with its derivatives.

With b = 1/T and the gaps g_kc = f_kc - f_ky of draw k's logits to that of the true class y, every draw's loss is
l_k = -log softmax(b f_k)_y = log sum_c exp(b g_kc), and that of the mixture

    L = -log 1/K sum_k exp(-l_k),      r_k = exp(-l_k) / sum_j exp(-l_j)
    L' = sum_k r_k l_k',               l_k' = E_k[g],    the mean of g_kc under draw k's softmax
    L'' = sum_k r_k l_k'' - Var_r(l'), l_k'' = Var_k[g]

For K = 1 it is convex in b; a mixture need not be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixture_losses(gaps: Tensor, inverse: float) -> tuple[Tensor, Tensor, Tensor]:
    """L, L' and L'' of every row (N,), in float64, for gaps (K, N, C) and b = `inverse`.

    >>> gaps = torch.tensor([[[0.0, -2.0]], [[0.0, 2.0]]])  # two draws, one row, two classes: the first is true
    >>> mixture_losses(gaps, 1.0)[0]  # -log of the mean of sigmoid(2) and sigmoid(-2)
    tensor([0.6931], dtype=torch.float64)
    """
    gaps = gaps.double()
    scaled = inverse * gaps
    losses = scaled.logsumexp(-1)  # (K, N)
    probs = (scaled - losses[..., None]).exp()
    slopes = (probs * gaps).sum(-1)
    spreads = (probs * (gaps - slopes[..., None]).square()).sum(-1)
    shares = torch.softmax(-losses, 0)
    slope = (shares * slopes).sum(0)
    curvature = (shares * (spreads - (slopes - slope).square())).sum(0)
    return math.log(len(gaps)) - (-losses).logsumexp(0), slope, curvature
