"""One forward, one draw: what the layers of a network must agree on, for exactly as long as a forward lasts.

A `Draw` is opened by a hook on the root (put there by `bayesianize_`) or by `bnn.predict`, and closed when the forward
returns or raises. Layers ask it for their weights, so that a layer that runs twice in a forward shows the same weights
twice, and every layer shows the same ensemble member. A layer called on its own draws on its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

T = TypeVar("T")


class Seeds:
    """A whole network's draw as one number: every layer has a generator of its own, whatever order layers run in."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        self.seed = seed
        self._kept = network  # so that no other module takes over an id
        self._index = {id(module): i for i, module in enumerate(unwrapped(network).modules())}

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._index

    def generator(self, module: nn.Module | None, device: torch.device | str) -> torch.Generator:
        """The generator of a layer, or of what all layers share (None), always at its start."""
        index = 0 if module is None else 1 + self._index[id(module)]
        state = np.random.SeedSequence([self.seed % 2**64, index]).generate_state(1, np.uint32)
        return torch.Generator(device).manual_seed(int(state[0]))


class Draw:
    """One sample of everything the network needs to be a function.

    Args:
        root: the network whose forward this draw serves; None for a layer on its own.
        seeds: makes the draw repeatable; None draws from torch's global generators.
        member: the ensemble member to show; None picks one at random when the first layer asks.
        pinned: opened around calls of the root (`predict`), rather than by the root's own hook.
        at_mean: no sample at all: every layer uses its posterior mean.
    """

    def __init__(
        self,
        root: nn.Module | None = None,
        seeds: Seeds | None = None,
        member: int | None = None,
        pinned: bool = False,
        at_mean: bool = False,
    ) -> None:
        self.root = root if root is None else unwrapped(root)
        self.at_mean = at_mean
        self.seeds = seeds
        self.pinned = pinned
        self.depth = 1  # how often the root is running: it may call itself
        self.outer: Draw | None = None
        self._scope = frozenset(map(id, self.root.modules())) if self.root is not None and pinned else None
        self._member = member
        self._members: dict[tuple[int, Seeds | None], Tensor] = {}
        self._drawn: dict[nn.Module, Any] = {}

    def seeds_of(self, module: nn.Module) -> Seeds | None:
        """What makes `module` repeatable: this draw's own seeds, else those of the innermost `frozen_draw`."""
        return self.seeds if self.seeds is not None and module in self.seeds else _frozen_seeds(module)

    def frozen(self, module: nn.Module) -> bool:
        """Whether `module` must show one and the same function of every input."""
        return self.seeds_of(module) is not None

    def once(self, module: nn.Module, sample: Callable[[], T]) -> T:
        """What `sample` returned the first time `module` asked in this draw."""
        if module not in self._drawn:
            self._drawn[module] = sample()
        result: T = self._drawn[module]
        return result

    def generator(self, module: nn.Module, like: Tensor) -> torch.Generator | None:
        """The generator `module` draws from, on the device of `like`; None is torch's global one."""
        seeds = self.seeds_of(module)
        return None if seeds is None else seeds.generator(module, like.device)

    def member(self, module: nn.Module, size: int) -> Tensor:
        """The index (1,) of the ensemble member that all layers with `size` members show in this draw."""
        self.refuse_recomputation("ensemble member")
        seeds = self.seeds_of(module)
        member = self._member if seeds is self.seeds else None  # inside `frozen_draw` its seed decides
        if (size, seeds) not in self._members:
            generator = None if seeds is None else seeds.generator(None, "cpu")
            picked = torch.randint(size, (1,), generator=generator) if member is None else torch.tensor([member % size])
            self._members[size, seeds] = picked
        return self._members[size, seeds]

    def refuse_recomputation(self, what: str) -> None:
        """Raises where a layer runs again inside backward (gradient checkpointing), after its forward's draw closed."""
        if self.root is None and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                f"gradient checkpointing runs this layer again after its forward ended, when the {what} that all "
                "layers shared is not known any more; checkpoint the network as a whole, or leave this layer out"
            )

    def covers(self, module: nn.Module) -> bool:
        """Whether a forward of `module` that starts now is a part of this draw rather than one of its own."""
        if self._scope is not None:
            return id(module) in self._scope
        return self.root is not None and any(module is other for other in self.root.modules())


class _Current(threading.local):
    """Per thread: the open draw, and the seeds of all `frozen_draw` blocks around, innermost first."""

    def __init__(self) -> None:  # runs once per thread; attributes of the class would trip torch.compile
        self.draw: Draw | None = None
        self.seeds: tuple[Seeds, ...] = ()


_current = _Current()


def current_draw() -> Draw:
    """The draw a layer takes part in: the open one, or a new one for a layer called on its own."""
    return _current.draw if _current.draw is not None else Draw()


@contextmanager
def open_draw(draw: Draw) -> Iterator[Draw]:
    """Makes `draw` the one that every forward inside the block takes part in."""
    draw.outer, _current.draw = _current.draw, draw
    try:
        yield draw
    finally:
        _current.draw = draw.outer


@contextmanager
def frozen_draw(network: nn.Module, seed: int = 0) -> Iterator[None]:
    """Holds one function of the posterior fixed: inside the block every `network(x)` uses the draw named by `seed`.

    The noise is fixed, not the weights: parameters may change inside the block and gradients flow to them. For
    plotting functions, time series and gradient checks.

    >>> import bnn
    >>> net = torch.nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "ffg", init_sd=1.0)
    >>> x = torch.ones(1, 3)
    >>> with bnn.frozen_draw(net, seed=7):
    ...     print(torch.equal(net(x), net(x)))
    True
    >>> torch.equal(net(x), net(x))
    False
    """
    if not isinstance(network, nn.Module) or not isinstance(seed, int):
        raise TypeError(f"frozen_draw takes a network and an integer seed, got {type(network).__name__} and {seed!r}")
    outer, _current.seeds = _current.seeds, (Seeds(network, seed), *_current.seeds)
    try:
        yield
    finally:
        _current.seeds = outer


def mark_root_(network: nn.Module) -> None:
    """Marks `network` in place as a root: each of its forwards is one draw. Marking twice changes nothing."""
    if "_draw_hooks" in network.__dict__:
        return
    # The handles travel with the network: unpickling them reserves their ids, so that no later hook overwrites ours.
    network.__dict__["_draw_hooks"] = [
        network.register_forward_pre_hook(_open),
        network.register_forward_hook(_close, always_call=True),
    ]


def _frozen_seeds(module: nn.Module) -> Seeds | None:
    return next((seeds for seeds in _current.seeds if module in seeds), None)


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside `torch.compile`'s wrapper; any other network itself."""
    inner = network.__dict__.get("_modules", {}).get("_orig_mod")
    return network if inner is None else inner


def _open(module: nn.Module, args: Any) -> None:
    draw = _current.draw
    if draw is not None and draw.root is module and not draw.pinned:
        if _calls_itself(module):
            draw.depth += 1
            return
        draw = draw.outer  # left behind by an interrupted forward: closing hooks do not run on Ctrl-C
    elif draw is not None and draw.covers(module):
        return
    new = Draw(root=module)
    new.outer, _current.draw = draw, new


def _close(module: nn.Module, args: Any, output: Any) -> None:
    draw = _current.draw
    if draw is None or draw.root is not module or draw.pinned:
        return
    draw.depth -= 1
    if not draw.depth:
        _current.draw = draw.outer


def _calls_itself(module: nn.Module) -> bool:
    """Whether a call of `module` is running below the one whose opening hook asks."""
    frame, calls = sys._getframe(), 0
    while frame is not None:
        calls += frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1
