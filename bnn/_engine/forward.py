"""Which forward is running: one forward of the network, one draw, for exactly as long as it lasts.

A `Forward` is opened by a hook on the root (put there by `bayesianize_`), or by whoever runs several draws
(`open_forward`), and ends when the network returns or raises, whatever it raises. A layer called on its own has one of
its own.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn._engine import recompute
from bnn._engine.call import Call, Repeated
from bnn._engine.draw import Draw
from bnn._engine.frozen import on_stack
from bnn._engine.inputs import inputs_of

_TWICE = (
    "a {} ran twice in one forward with separate noise; from now on it draws its weights, so that all its calls see "
    "the same function (sampling='weight' does so from the start)"
)


ever_ran: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # Bayesian layers, for `bnn._engine.unused`


class End(NamedTuple):
    """What a last layer gave: outputs (K, ...) of all draws, and those of the first, with which the network ends."""

    outputs: Tensor
    first: Tensor
    mark: Any


class Forward:
    """One run of a network under a draw.

    Args:
        draw: what its layers show.
        root: the network; None for a layer on its own.
        pinned: opened around calls of the root (`open_forward`), rather than by the root's own hook.
        token: a tensor that stands for the K draws inside `torch.vmap`, where they run as one pass.
        frame: of the call of the root, where its hook opened this. A forward that Ctrl-C ended runs no hook, so what
            tells that it ended is that its frame is on the stack no longer.
    """

    def __init__(
        self,
        draw: Draw,
        root: nn.Module | None = None,
        pinned: bool = False,
        token: Tensor | None = None,
        frame: FrameType | None = None,
    ) -> None:
        self.draw, self.root, self.pinned, self.token, self.frame = draw, root, pinned, token, frame
        self.eager = pinned or frame is not None  # opened outside of what torch.compile traces
        self.depth = 1  # how often the root is running: it may call itself
        self.outer: Forward | None = None
        self.record: Any = None  # for gradient checkpointing
        self.ends: list[End] | None = None  # where the last layer gives all draws, and the network returns one of them
        self._ran: set[int] = set()  # ids, which torch.compile can follow
        self._covered: frozenset[int] | None = None

    def enter(self, layer: Any) -> None:
        """Notes that `layer` runs; the second time it is marked as `repeats`, so that all its calls see one W.

        Weights drawn as a whole are the same in both calls. Where the first call drew only its outputs it is too late:
        the caller starts again (`Repeated`), or a warning says that this one forward had two functions.
        """
        if id(layer) in self._ran and not layer.repeats:
            layer.repeats = True
            if id(layer) in self.draw.call.by_rows:
                if self.draw.call.restarts:
                    raise Repeated
                warnings.warn(_TWICE.format(type(layer).__name__), UserWarning, stacklevel=3)
        self._ran.add(id(layer))
        if not torch.compiler.is_compiling():
            ever_ran.add(layer)

    def ran(self, layer: nn.Module) -> bool:
        """Whether `layer` has run in this forward."""
        return id(layer) in self._ran

    def covers(self, module: nn.Module) -> bool:
        """Whether a run of `module` that starts now is a part of this forward rather than one of its own."""
        if module is self.root:
            return True
        call = self.draw.call
        if self.root is not None and self.root is call.root:
            return id(module) in call.parts()  # which all forwards of a call share
        if self._covered is None:
            self._covered = frozenset() if self.root is None else frozenset(map(id, self.root.modules()))
        return id(module) in self._covered


class _Thread(threading.local):
    """Per thread: the innermost forward. A forward never waits for another task, so this needs no context."""

    def __init__(self) -> None:  # runs once per thread; attributes of the class would trip torch.compile
        self.forward: Forward | None = None


_thread = _Thread()


def running() -> Forward | None:
    """The innermost forward that is running in this thread."""
    forward = _thread.forward
    if forward is None or torch.compiler.is_compiling():
        return forward
    while forward is not None and forward.frame is not None and not on_stack(forward.frame):
        forward = forward.outer  # it was interrupted
    _thread.forward = forward
    return forward


def forward_of(layer: nn.Module) -> Forward:
    """The forward that `layer` takes part in: the running one, or that in which it ran before, or one of its own."""
    forward = running()
    if forward is not None:
        return forward
    if recompute.in_backward():
        return Forward(recompute.recorded(layer))
    return Forward(Draw.fresh(layer))


def eager_around() -> bool:
    """Whether torch.compile traces a part of a forward that it does not trace as a whole."""
    return torch.compiler.is_compiling() and _thread.forward is not None and _thread.forward.eager


@contextmanager
def open_forward(forward: Forward) -> Iterator[Forward]:
    """Makes `forward` the one that every layer inside the block takes part in."""
    forward.outer, _thread.forward = _thread.forward, forward
    try:
        yield forward
    finally:
        _thread.forward = forward.outer


# ---- roots -----------------------------------------------------------------------------------------------------------


def mark_root_(network: nn.Module) -> None:
    """Marks `network` in place as a root: each of its forwards is one draw. Marking twice changes nothing."""
    if "_draw_hooks" in network.__dict__:
        return
    # The handles travel with the network: unpickling them reserves their ids, so that no later hook overwrites ours.
    network.__dict__["_draw_hooks"] = [
        network.register_forward_pre_hook(_open, with_kwargs=True),
        network.register_forward_hook(_close, always_call=True),
    ]


def _open(module: nn.Module, args: Any, kwargs: Any) -> None:
    forward = running()
    if forward is not None:
        if forward.root is module and not forward.pinned:
            forward.depth += 1  # it calls itself
            return
        if forward.covers(module):
            return
    record = recompute.note(module)
    call = Call(root=module)
    if record is None and recompute.in_backward():  # runs again for its gradient
        if not recompute.is_recorded(module):
            return  # it was a part of a larger forward: its layers know which
        draw = recompute.recorded(module, root=True)
        draw.call = call
    else:
        draw = Draw.fresh(module, call, inputs=inputs_of(args, kwargs))
    compiling = torch.compiler.is_compiling()
    new = Forward(draw, root=module, frame=None if compiling else sys._getframe(1))
    new.outer, new.record = forward, None if record is None else record.of(draw)
    _thread.forward = new


def _close(module: nn.Module, args: Any, output: Any) -> None:
    forward = running()
    if forward is None or forward.root is not module or forward.pinned:
        return
    forward.depth -= 1
    if not forward.depth:
        _thread.forward = forward.outer
        recompute.keep(forward.record, output)
