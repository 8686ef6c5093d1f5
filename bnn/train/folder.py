"""The folder of a run: its files, one process at a time, and errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Iterator
from typing import Any

from bnn._common.lock import held
from bnn.train.checkpoint import previous

CHECKPOINT, BEST, NET = "checkpoint.safetensors", "best.safetensors", "net.safetensors"
OTHER_FOLDER = "give this run another folder (out=), or delete the old one to start anew"


class RunFolder:
    """Where a run writes; without a path it writes nothing."""

    def __init__(self, fabric: Any, path: str | None) -> None:
        self.fabric, self.root = fabric, path

    def path(self, name: str) -> str:
        """The file of this name."""
        assert self.root is not None
        return os.path.join(self.root, name)

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Writes a checkpoint whole or not at all, by the first process."""
        if self.root is not None:
            with self.writing():
                self.fabric.save(self.path(name), state)

    def load(self, path: str) -> dict[str, Any]:
        """What a checkpoint holds."""
        state: dict[str, Any] = self.fabric.load(path)
        return state

    def newest(self) -> str | None:
        """The newest checkpoint; what a killed run left half-written is removed."""
        if self.root is None:
            return None
        if self.fabric.is_global_zero:
            for leftover in glob.glob(os.path.join(glob.escape(self.root), ".*.tmp")):
                with contextlib.suppress(OSError):
                    os.remove(leftover)
        path = self.path(CHECKPOINT)
        return next((one for one in (path, previous(path)) if os.path.exists(one)), None)

    def intact(self) -> str:
        """A clause for errors: what is still there."""
        return f"; the last checkpoint in {self.root} is intact" if self.root and self.newest() else ""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Says what to do when the disk is full."""
        try:
            yield
        except BlockingIOError:
            raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise OSError(
                error.errno,
                f"cannot write to {self.root}: {error.strerror or error}; the last checkpoint there is intact: "
                f"{'make room' if full else 'make it writable'} and start the run again to go on from it",
            ) from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Refuses a folder in which another run is going on; the system frees it when a run ends, however it ends."""
        if self.root is None or not self.fabric.is_global_zero:
            yield
            return
        with contextlib.ExitStack() as stack:
            try:
                with self.writing():
                    stack.enter_context(held(self.path(".lock")))
            except BlockingIOError:
                raise RuntimeError(
                    f"another run is going on in {self.root}: wait for it, or use another folder"
                ) from None
            yield
