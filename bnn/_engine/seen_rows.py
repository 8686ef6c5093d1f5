"""Which rows `bnn.fit` has trained a network on, so that a later guarantee does not rest on rows that it knows.

It is a plain attribute of the network that was trained: `copy.deepcopy` and a conversion in place keep it, the state
dict and files do not hold it. This file alone reads and writes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NAME = "_bnn_seen"


@dataclass(frozen=True)
class Seen:
    """The rows of one training: all of some data but those set aside.

    Args:
        rows: of the data.
        targets: a checksum of theirs, which tells data of as many rows apart; None where they are in no tensor.
        aside: how many were set aside.
        seed: of that sample.
    """

    rows: int
    targets: int | None
    aside: int = 0
    seed: int = 0

    @classmethod
    def of(cls, data: Any, aside: int, seed: int) -> Seen:
        """Of a `Part` or a data set with a length, before rows are set aside."""
        y = getattr(data, "y", None)
        stored = y.detach().cpu().contiguous().view(torch.uint8).numpy().data if isinstance(y, Tensor) else None
        return cls(len(data), None if stored is None else zlib.crc32(stored), aside, seed if aside else 0)


def remember_(network: nn.Module, seen: Seen) -> None:
    """Adds a training to those that `network` has had, in place."""
    before: tuple[Seen, ...] = getattr(network, NAME, ())
    if seen not in before:
        setattr(network, NAME, (*before, seen))


def forget_(network: nn.Module) -> None:
    """Forgets all trainings of `network` and of the modules in it, in place: its parameters begin anew."""
    for module in network.modules():
        if NAME in vars(module):
            delattr(module, NAME)


def known_rows(network: nn.Module, wanted: Seen, order: Callable[[int, int], Tensor]) -> int:
    """How many of the rows that `wanted` sets aside `network`, or a module in it, has been trained on.

    Args:
        order: (rows, seed) -> the order (rows,), of which the first are set aside.
    """
    chosen = order(wanted.rows, wanted.seed)[: wanted.aside]
    known = torch.zeros(wanted.rows, dtype=torch.bool)
    for seen in {one for module in network.modules() for one in vars(module).get(NAME, ())}:
        if (seen.rows, seen.targets) == (wanted.rows, wanted.targets):
            known[order(seen.rows, seen.seed)[seen.aside :]] = True
    return int(known[chosen].sum())
