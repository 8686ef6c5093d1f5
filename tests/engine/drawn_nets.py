"""Networks that the tests of draws, forwards and frozen draws share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import choose_ways, set_noise_, sizes_of
from torch import Tensor, nn

import bnn
from bnn._engine import frozen
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.forward import Forward, running
from bnn.functional.cost import Way


def noisy(net: nn.Module, inference: str = "ffg", **options: Any) -> Any:
    """`net`, converted, with a posterior that is wide enough to see."""
    if inference == "ffg":
        options = {"local_reparameterization": False} | options
    bnn.bayesianize_(net, inference, **(sizes_of(inference) | options))
    set_noise_(net, 0.5)
    return net


def pinned(net: nn.Module, count: int = 1, **settings: Any) -> Forward:
    """A forward of `net` under a new draw whose noise comes from torch's global generator."""
    return Forward(Draw(Call(net, count), count, **settings), root=net, pinned=True)


def nothing_is_open() -> bool:
    """Whether no forward runs in this thread and no `frozen_draw` is open in any."""
    return running() is None and not frozen._open_entries() and not frozen._open[0]


def ways_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inducing layers do without weights wherever they may, whatever it costs."""
    choose_ways(monkeypatch, lambda ways, size: max(ways, key=lambda way: way is not Way.DENSE))


class Twice(nn.Module):
    """Runs one layer twice on the same input, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


class Steps(nn.Module):
    """Runs one layer four times, on what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.step(x)
        return x


class Tree(nn.Module):
    """A root that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        here = self.leaf(x)
        return here if not depth else torch.cat([self(x, depth - 1), here, self(x, depth - 1)])
