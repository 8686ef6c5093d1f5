"""Batches that travel through a network together and stop at its layers, so that one pass shows each layer's inputs.

A forward cannot be stopped and resumed at will, except in a thread of its own. A lane is such a thread: exactly one of
all lanes and their owner runs at a time, so nothing here is concurrent.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bnn._conversion.skips import Skip


class Cancelled(BaseException):
    """Ends a lane that nobody will advance any more; no `except Exception` of a network catches it."""


class Lane:
    """One batch on its way through a network.

    Args:
        forward: runs the network on the batch; layers call `stop` on their way.
        changed: whether layers show their new weights, rather than their own.
    """

    def __init__(self, forward: Callable[[], Any], changed: bool) -> None:
        self.changed = changed
        self.layer: nn.Module | None = None  # where it has stopped
        self.tensor: Tensor | None = None  # what that layer is given, or gives
        self.skip: Skip | None = None  # what will be added to the layer's output, where that is known
        self.inputs: dict[nn.Module, tuple[Any, Any]] = {}  # of the residual blocks that are running
        self.output: Any = None
        self.ended = False
        self._forward, self._cancelled = forward, False
        self._error: BaseException | None = None
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    def advance(self) -> None:
        """Runs until the next stop or the end; raises what the network raises."""
        if not self._thread.is_alive():
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()
        if self._error is not None:
            raise self._error

    def stop(self, layer: nn.Module, tensor: Tensor) -> None:
        """Waits, inside the lane, for the owner to advance it."""
        self.layer, self.tensor = layer, tensor
        self._theirs.release()
        self._mine.acquire()
        self.layer = self.tensor = self.skip = None
        if self._cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """Ends the thread, if it is running."""
        if self._thread.is_alive():
            self._cancelled = True
            self._mine.release()
            self._thread.join()

    def _run(self) -> None:
        _here.lane = self
        try:
            with torch.no_grad():
                self.output = self._forward()
        except Cancelled:
            pass
        except BaseException as error:
            self._error = error
        self.ended = True
        self._theirs.release()


class _Here(threading.local):
    """Per thread: the lane that runs in it."""

    lane: Lane | None = None


_here = _Here()


def current_lane() -> Lane | None:
    """The lane that runs in this thread; None for its owner."""
    return _here.lane
