"""Pruned tensors in files: the values that are kept, one after the other, and a bit for every entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnn.nn.base import BayesianLayer
from bnn.nn.pruning import MASK, masked

Record = dict[str, dict[str, Any]]  # {name of a tensor: {"mask": name of its mask, "shape": [...]}}


def masks_in(network: nn.Module) -> dict[str, str]:
    """{name of a pruned tensor of the state dict: name of its mask}."""
    found: dict[str, str] = {}
    for place, layer in network.named_modules(remove_duplicate=False):
        prefix = f"{place}." if place else ""
        names = masked(layer) if isinstance(layer, BayesianLayer) else []
        found |= {prefix + name: prefix + MASK + name for name in names}
    return found


def packed(tensors: Mapping[str, Tensor], masks: Mapping[str, str]) -> tuple[dict[str, Tensor], Record]:
    """The tensors as a file holds them, and what it takes to read them: pruned ones (n kept,), masks as bytes."""
    own = {name: mask for name, mask in masks.items() if name in tensors and mask in tensors}
    found = dict(tensors)
    for name, mask in own.items():
        found[name] = tensors[name][tensors[mask]]
    for mask in set(own.values()):
        found[mask] = torch.from_numpy(np.packbits(tensors[mask].numpy().ravel(), bitorder="little"))
    return found, {name: {"mask": mask, "shape": list(tensors[name].shape)} for name, mask in own.items()}


def unpacked(stored: Mapping[str, Tensor], record: Any) -> dict[str, Tensor]:
    """The tensors that `packed` was given; ValueError where the record and the tensors contradict each other."""
    if not isinstance(record, dict):
        raise ValueError(f"expected what was pruned as a dict, found a {type(record).__name__}")
    found = dict(stored)
    for name, one in record.items():
        mask, shape = _checked(stored, name, one)
        bits = _bits(name, stored[mask], math.prod(shape))
        values = stored[name]
        if values.ndim != 1 or len(values) != int(bits.sum()):
            shown = tuple(values.shape)
            raise ValueError(f"{name!r} should hold the {int(bits.sum())} values that {mask!r} keeps, it has {shown}")
        whole = values.new_zeros(shape)
        whole[bits.view(shape)] = values
        found |= {name: whole, mask: bits.view(shape)}
    return found


def _checked(stored: Mapping[str, Tensor], name: str, one: Any) -> tuple[str, list[int]]:
    """Name of the mask and shape of a pruned tensor."""
    known = isinstance(one, dict) and one.keys() == {"mask", "shape"}
    if not known or not isinstance(one["shape"], list) or not all(type(n) is int and n >= 0 for n in one["shape"]):
        raise ValueError(f"{name!r:.60}: expected a mask and a shape, found {one!r:.60}")
    if name not in stored or not isinstance(one["mask"], str) or one["mask"] not in stored:
        raise ValueError(f"{name!r:.60} or its mask {one['mask']!r:.60} is missing")
    return one["mask"], one["shape"]


def _bits(name: str, stored: Tensor, number: int) -> Tensor:
    """The first `number` bits of a mask, as booleans."""
    if stored.dtype != torch.uint8 or stored.shape != (-(-number // 8),):
        shown = f"{tuple(stored.shape)} of {stored.dtype}"
        raise ValueError(f"the mask of {name!r} should be {-(-number // 8)} bytes for {number} entries, it is {shown}")
    bits = np.unpackbits(stored.numpy(), bitorder="little")
    if bits[number:].any():
        raise ValueError(f"the mask of {name!r} has more bits than the {number} entries of the tensor")
    return torch.from_numpy(bits[:number].astype(bool))
