"""Masks of dropout from standard normals."""

from __future__ import annotations

import torch
from torch import Tensor


def dropout_mask(noise: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 - p), for every entry of standard normal `noise`: mean 1, variance p / (1 - p).

    >>> dropout_mask(torch.tensor([-2.0, 0.0, 2.0]), 0.2)
    tensor([0.0000, 1.2500, 1.2500])
    """
    return (torch.special.ndtr(noise) >= p).to(noise.dtype) / (1 - p) if p < 1 else torch.zeros_like(noise)
