"""Ensemble members, used evenly."""

from __future__ import annotations

import torch
from torch import nn

from bnn.nn.inducing import InducingBase
from bnn.nn.q_inducing import Ensemble


def even_members(network: nn.Module, samples: int, generator: torch.Generator | None = None) -> list[int] | None:
    """The ensemble member each of `samples` draws shows: every member equally often, in random order.

    20 draws of 5 members are 4 of each; with a remainder, which members come once more is random. None for a
    network without Ensemble-U.
    """
    size = member_count(network)
    if not size:
        return None
    rounds, device = -(-samples // size), "cpu" if generator is None else generator.device
    picked = torch.cat([torch.randperm(size, generator=generator, device=device) for _ in range(rounds)])
    return picked[:samples].tolist()


def member_count(network: nn.Module) -> int:
    """How many members Ensemble-U has in `network`; 0 for a network without it."""
    layers = [module for module in network.modules() if isinstance(module, InducingBase)]
    return max((layer.q.size for layer in layers if isinstance(layer.q, Ensemble)), default=0)
