"""What is pruned of a layer: a boolean buffer beside every parameter that has zeros for good, True where it is kept.

Families read a prunable parameter through `kept`, so whatever an optimiser writes into a pruned entry (momentum of
before, weight decay), it is an exact zero that takes no gradient. A layer that was never pruned has no such buffer.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

MASK = "_mask_"  # and the name of the parameter


class Prunable(NamedTuple):
    """Parameters of one shape whose entries are pruned together, and how much each entry matters."""

    names: tuple[str, ...]  # where the last entry to go does not go as a whole, the first of these go
    scores: Tensor  # in that shape, never negative; the smallest go first


def mask_of(layer: nn.Module, name: str) -> Tensor | None:
    """Which entries of a parameter are kept; None where all are."""
    return layer._buffers.get(MASK + name)


def kept(layer: nn.Module, name: str) -> Tensor:
    """A parameter with exact zeros where it was pruned."""
    value, mask = getattr(layer, name), mask_of(layer, name)
    found: Tensor = value if mask is None else torch.where(mask, value, 0)
    return found


def masked(layer: Any) -> list[str]:
    """The names of the parameters that were pruned."""
    return [name for name in layer.prunable if mask_of(layer, name) is not None]


def set_mask_(layer: Any, name: str, mask: Tensor) -> None:
    """Prunes a parameter, in place, to the entries where `mask` is True; entries that are gone stay gone."""
    before = mask_of(layer, name)
    mask = mask if before is None else mask & before
    if before is None and bool(mask.all()):
        return
    layer.register_buffer(MASK + name, mask)
    with torch.no_grad():
        getattr(layer, name).mul_(mask)  # so that whoever looks sees zeros, too


def expect_masks_(layer: Any, prefix: str, state: Container[str]) -> None:
    """Makes room, in place, for the masks that a state dict holds under `prefix` and the layer does not have yet."""
    for name in layer.prunable:
        if prefix + MASK + name in state and mask_of(layer, name) is None:
            value = getattr(layer, name)
            layer.register_buffer(MASK + name, torch.ones(value.shape, dtype=torch.bool, device=value.device))


def pruned_entries(module: nn.Module) -> int:
    """How many entries of a module's own parameters are gone; of a plain one none."""
    masks = [mask_of(module, name) for name in module._parameters]
    return sum(mask.numel() - int(mask.sum()) for mask in masks if mask is not None)


def own_count(module: nn.Module) -> int:
    """The parameters of a module by itself, without those of its children and without what was pruned."""
    total = sum(one.numel() for one in module.parameters(recurse=False) if not is_lazy(one))
    return total - pruned_entries(module)
