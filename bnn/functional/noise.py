"""The scale of Gaussian noise that makes a mixture over draws likeliest: a search in one dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GRID, STEPS = 48, 60  # scales that are tried before the search, as a mixture may have several maxima; steps of it
GOLDEN = (math.sqrt(5) - 1) / 2
SMALLEST = 1e-6  # of what the residuals could have been: no noise at all would be an infinite likelihood


def likeliest_scale(residuals: Tensor, size: Tensor, sds: Tensor | None = None) -> Tensor:
    """c = argmax sum_n log 1/K sum_k N(r_kn; 0, (c s_kn)^2), a scalar in float64.

    With one draw it is the rms of r / s. A maximum is a mean of r^2 / s^2 with weights over the draws, so it lies
    between the means of the smallest and of the largest of them.

    Args:
        residuals: r (K, n) of K draws, all finite; n of at least 1.
        size: a scalar, how large residuals would be without a network; c is at least a millionth of it.
        sds: s (K, n); None: 1 everywhere.
    """
    r = residuals.double()
    logs = torch.zeros_like(r) if sds is None else sds.double().log()
    squares = (r * (-logs).exp()).square()
    least = (SMALLEST * size.double()).clamp(min=torch.finfo(torch.float32).tiny ** 0.5)
    low = squares.amin(0).mean().sqrt().clamp(min=least)
    high = squares.amax(0).mean().sqrt().clamp(min=least)
    if len(r) == 1 or not bool(high > low):
        return high

    def score(log_c: Tensor) -> Tensor:
        return (-0.5 * squares * (-2 * log_c).exp() - logs).logsumexp(0).sum() - log_c * r.shape[1]

    grid = torch.linspace(float(low.log()), float(high.log()), GRID, dtype=torch.double, device=r.device)
    best = int(torch.stack([score(one) for one in grid]).argmax())
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    for _ in range(STEPS):  # golden section
        width = GOLDEN * (right - left)
        if bool(score(right - width) >= score(left + width)):
            right = left + width
        else:
            left = right - width
    return (0.5 * (left + right)).exp()
