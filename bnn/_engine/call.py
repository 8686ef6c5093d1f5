"""What all forwards of one call share: how every layer draws, decided once, and what is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bnn._engine.inputs import modules_of
from bnn._engine.noise import unwrapped
from bnn.functional.cost import Way


class Repeated(Exception):  # noqa: N818, the name says what happened
    """A layer ran twice in a forward and is now marked: the call must start again."""


class TooLarge(Exception):  # noqa: N818
    """So many draws at once do not fit; `draws` do."""

    def __init__(self, draws: int) -> None:
        super().__init__(draws)
        self.draws = draws


class NotLast(Exception):  # noqa: N818
    """Something follows the layer that was taken for the last: the call must start again."""


class Call:
    """One call: of `bnn.draws`, of an objective, or simply of the network.

    Args:
        root: the network that is called; None for a layer on its own.
        draws: how many draws the call makes in all.
        at_mean: no sample at all: every layer uses its posterior mean.
        restarts: a layer that turns out to run twice raises `Repeated`, because the caller starts again.
        limit: bytes that the input and output of a layer may take, all draws of a pass together; more raises
            `TooLarge`.
    """

    def __init__(
        self,
        root: nn.Module | None = None,
        draws: int = 1,
        at_mean: bool = False,
        restarts: bool = False,
        limit: int | None = None,
    ) -> None:
        self.root = root if root is None else unwrapped(root)
        self.scope = self.root  # the part of it that runs now: of an ensemble, the member that is shown
        self.draws, self.at_mean, self.restarts, self.limit = draws, at_mean, restarts, limit
        self.ways: dict[nn.Module, Way] = {}
        self.by_rows: set[int] = set()  # ids of layers that drew the noise of their outputs, not their weights
        self.posteriors: dict[nn.Module, Any] = {}  # of layers, where they were computed together
        self.prepared: set[int] = set()  # ids of the scopes for which they were
        self.computed: dict[tuple[nn.Module, str, bool], Any] = {}  # by layer, name, and whether gradients flow
        self.rows: dict[tuple[nn.Module, torch.Size], Any] = {}  # by layer and shape of its input
        self.entered: set[int] = set()  # ids of the parts that `within` showed
        self._coupled: bool | None = None
        self._parts: frozenset[int] | None = None

    def parts(self) -> frozenset[int]:
        """The ids of the modules of the root, itself included."""
        if self._parts is None:
            self._parts = frozenset() if self.root is None else frozenset(map(id, modules_of(self.root)))
        return self._parts

    def couples_inputs(self) -> bool:
        """Whether BatchNorm normalises by the batch, so that one input's output depends on the others."""
        if self._coupled is None:
            modules = [] if self.root is None else modules_of(self.root)
            self._coupled = any(
                isinstance(m, nn.modules.batchnorm._BatchNorm) and (m.training or m.running_mean is None)
                for m in modules
            )
        return self._coupled

    @contextmanager
    def within(self, part: nn.Module) -> Iterator[None]:
        """Inside the block only `part` of the network runs."""
        outer, self.scope = self.scope, part
        self.entered.add(id(part))
        try:
            yield
        finally:
            self.scope = outer
