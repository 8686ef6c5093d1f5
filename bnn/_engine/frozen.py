"""`bnn.frozen_draw`: blocks in which a network shows one and the same function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from torch import nn

from bnn._engine.noise import Seeds

_entries: ContextVar[tuple[_Entry, ...]] = ContextVar("bnn_frozen_draws", default=())  # innermost first
_open = [0]  # blocks of all contexts: as long as there is none, nobody needs to look, torch.compile least of all

# Modules that resume a generator on behalf of the code that uses it: `@contextmanager`, fixtures of pytest.
_STAND_INS = ("contextlib", "_pytest.fixtures")


def frozen_draw(network: nn.Module, seed: int = 0) -> AbstractContextManager[None]:
    """Holds one function of the posterior fixed: inside the block every `network(x)` uses the draw named by `seed`.

    The noise is fixed, not the weights: parameters may change inside the block and gradients flow to them. For
    plotting functions, time series and gradient checks. A block belongs to its asyncio task, its thread, or, in a
    generator, to the generator: while that is suspended nobody else sees it.

    >>> import torch, bnn
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
    return _Block(network, seed)


def frozen_now() -> tuple[Seeds, ...]:
    """The seeds of all blocks around this point of the program, innermost first."""
    return _around() if _open[0] else ()


class _Entry:
    """One entered block, as its context lists it: an empty shell once the block is left."""

    def __init__(self, seeds: Seeds, owner: FrameType | None) -> None:
        self.seeds: Seeds | None = seeds
        self.owner = owner  # the code whose block it is
        self.in_generator = owner is not None and _is_generator(owner)  # then it counts only while that code runs

    def close(self) -> None:
        """Empties it, wherever it is still listed.

        The list itself stays: a generator that is collected as garbage leaves its block wherever memory is allocated,
        inside another ContextVar's `set` as well, and a second `set` there frees what the first is reading on Python
        3.10 and 3.11 (python/cpython#148891).
        """
        self.seeds = self.owner = None


class _Block(ContextDecorator, AbstractContextManager[None]):
    """One `with frozen_draw(...)`."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        self.network, self.seed = network, seed
        self.entry: _Entry | None = None  # while it is open

    def _recreate_cm(self) -> _Block:  # as a decorator: a block of its own for every call
        return _Block(self.network, self.seed)

    def __enter__(self) -> None:
        if self.entry is not None:
            raise RuntimeError("this frozen_draw is entered already: make another for a block inside it")
        self.entry = _Entry(Seeds(self.network, self.seed), _owner(sys._getframe(1)))
        _entries.set((self.entry, *_open_entries()))
        _open[0] += 1

    def __exit__(self, *error: Any) -> None:
        # It may be left in another order, or context, than it was entered in, so it closes itself alone.
        assert self.entry is not None
        self.entry.close()
        self.entry = None
        _open[0] -= 1


def _open_entries() -> list[_Entry]:
    return [entry for entry in _entries.get() if entry.seeds is not None]


def _around() -> tuple[Seeds, ...]:
    entries = _open_entries()
    if any(entry.in_generator for entry in entries):
        # The innermost block is the one whose code is nearest on the stack, not the one that was entered last: a
        # generator may be resumed inside a block that is younger than its own.
        depth = {frame: i for i, frame in enumerate(_stack())}
        entries = [entry for entry in entries if entry.owner in depth or not entry.in_generator]
        entries.sort(key=lambda entry: depth.get(entry.owner, len(depth)))  # type: ignore[arg-type]
    return tuple(entry.seeds for entry in entries if entry.seeds is not None)


def _owner(frame: FrameType | None) -> FrameType | None:
    """The code that a `with` statement in `frame` serves: that of a context manager serves whoever uses it."""
    while frame is not None:
        while frame is not None and _stands_in(frame):
            frame = frame.f_back
        if frame is None or not (_is_generator(frame) and frame.f_back is not None and _stands_in(frame.f_back)):
            return frame
        frame = frame.f_back
    return None


def _is_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))


def _stands_in(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _STAND_INS


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def on_stack(frame: FrameType) -> bool:
    """Whether `frame` is running: this very function was called from it, however indirectly."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None
