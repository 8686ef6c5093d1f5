"""What was drawn: K samples of everything a network needs to be a function.

Layers ask a `Draw` for their noise, so that a layer that runs twice in a forward shows the same weights twice, and all
layers show the same ensemble member. Whatever is drawn has a leading dimension K.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bnn._engine.call import Call
from bnn._engine.frozen import frozen_now
from bnn._engine.noise import Noise, Seeds, fresh_number, rows_of
from bnn.functional.gaussian import standard_normal

T = TypeVar("T")

SHARED = "V"  # what one module draws for all layers: the global matrix of inducing weights


class Draw:
    """Draws `first` to `first + count` of a call.

    Args:
        call: what this draw shares with others of the same call.
        count: K; more than one where they run as one pass (`bnn._engine.fold`).
        seeds: name the randomness; None: torch's global generator makes the noise.
        members: the ensemble members to show; None picks them at random when the first layer asks.
        inputs: how many inputs the network was given: the length of their dimension 0; None: unknown.
        part: which batch of inputs this is, where one call runs several.
        folded: the draws run as one pass, so layers may choose the memory layout.
        pinned: `seeds` come before those of a `frozen_draw` around.
    """

    def __init__(
        self,
        call: Call | None = None,
        count: int = 1,
        seeds: Seeds | None = None,
        members: Sequence[int] | None = None,
        inputs: int | None = None,
        part: int = 0,
        folded: bool = False,
        pinned: bool = True,
    ) -> None:
        self.call = Call(draws=count) if call is None else call
        self.first, self.count, self.folded = 0, count, folded
        self.inputs, self.part = inputs, part
        self.members = None if members is None else tuple(members)
        self.parent: Draw | None = None  # all draws of the call, where this is a part of them
        self.seeds, self.pinned = seeds, pinned
        self.around: tuple[Seeds, ...] | None = None  # the `frozen_draw` blocks around; None: ask the context
        self.drawn: dict[tuple[nn.Module, str], Any] = {}
        self.shown: dict[tuple[int, Seeds | None], Tensor] = {}  # members, by how many there are

    @classmethod
    def fresh(cls, network: nn.Module, call: Call | None = None, **settings: Any) -> Draw:
        """A draw named by one number that is taken, now, from torch's global generator, where that can be."""
        number = fresh_number()
        seeds = None if number is None else Seeds(network, number)
        return cls(call, seeds=seeds, pinned=False, **settings)

    def only(self, start: int, stop: int, **changes: Any) -> Draw:
        """The draws from `start` to `stop` of these, with other attributes where `changes` says so."""
        some = copy.copy(self)
        some.parent = self if self.parent is None else self.parent
        some.first, some.count = self.first + start, stop - start
        some.drawn, some.shown = {}, {}
        some.__dict__.update(changes)
        return some

    def block(self, start: int, stop: int) -> Draw:
        """The draws from `start` to `stop` as all there are to draw at once: those of one network of an ensemble."""
        members = None if self.members is None else self.members[start:stop]
        return self.only(start, stop, parent=None, members=members)

    def once(self, module: nn.Module, name: str, sample: Callable[[Draw], T], whole: bool = False) -> T:
        """What `sample(draw)` returned the first time `module` asked for `name` in this draw: tensors (K, ...).

        Args:
            whole: sample for all draws of the call at once, where this is a part of them: for what takes little memory.
        """
        if whole and self.parent is not None:
            all_draws = self.parent.once(module, name, sample)
            if self.count == self.parent.count:
                return all_draws
            part: T = rows_of(all_draws, *self.within(self.parent))
            return part
        if (module, name) not in self.drawn:
            self.drawn[module, name] = sample(self)
        result: T = self.drawn[module, name]
        return result

    def within(self, whole: Draw) -> tuple[int, int]:
        """Where these draws start and stop among those of `whole`."""
        start = self.first - whole.first
        return start, start + self.count

    def normals(
        self, module: nn.Module, name: str, *shape: int, like: Tensor, by_input: bool = False, unit: int = 0
    ) -> Tensor:
        """Standard normals (K, *shape): the noise `name` of a layer, the same whenever it asks in a seeded draw.

        Args:
            by_input: the noise belongs to the inputs, so another batch of them gets another.
            unit: which of the units of inputs, where the noise comes in several.
        """
        seeds = self.seeds_of(module)
        if seeds is None:
            return standard_normal(self.count, *shape, like=like)
        noise = Noise(name, self.part if by_input else 0, unit)
        if seeds is not self.seeds:  # a frozen draw: one function for all K
            return seeds.normals(module, noise, shape, range(1), like).expand(self.count, *shape)
        last = None if self.parent is None else self.parent.first + self.parent.count
        return seeds.normals(module, noise, shape, range(self.first, self.first + self.count), like, last)

    def member(self, module: nn.Module, size: int) -> Tensor:
        """The indices (K,) of the ensemble members that all layers with `size` members show in this draw."""
        if self.parent is not None:
            return self.parent.member(module, size)[slice(*self.within(self.parent))]
        seeds = self.seeds_of(module)
        if (size, seeds) not in self.shown:
            given = self.members is not None and seeds is self.seeds  # inside `frozen_draw` its seed decides
            members = torch.tensor(self.members, device="cpu") % size if given else self._integers(seeds, None, size)
            self.shown[size, seeds] = members
        return self.shown[size, seeds]

    def integers(self, module: nn.Module, below: int) -> Tensor:
        """Random integers (K,) on the CPU: which of several parts `module` shows."""
        return self._integers(self.seeds_of(module), module, below)

    def _integers(self, seeds: Seeds | None, module: nn.Module | None, below: int) -> Tensor:
        if seeds is None:
            return torch.randint(below, (self.count,), device="cpu")
        if seeds is not self.seeds:
            return seeds.integers(module, "member", below, range(1)).expand(self.count)
        return seeds.integers(module, "member", below, range(self.first, self.first + self.count))

    def seeds_of(self, module: nn.Module) -> Seeds | None:
        """What names the noise of `module`: pinned seeds of its network, else a `frozen_draw` around, else `seeds`."""
        around = frozen_now() if self.around is None else self.around
        if not around or (self.pinned and self.seeds is not None and module in self.seeds):
            return self.seeds
        return next((seeds for seeds in around if module in seeds), self.seeds)

    def frozen(self, module: nn.Module) -> bool:
        """Whether `frozen_draw` asks `module` to show one and the same function in every forward."""
        return self.seeds_of(module) is not self.seeds
