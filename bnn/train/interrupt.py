"""Ctrl-C and SIGTERM: noted, so that a run stops after the step rather than in the middle of it."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Inside the block the first signal is only noted in `caught`; a second one interrupts at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # others cannot handle signals
            for number in self.SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # nohup stays nohup; None: not Python's to give back
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number

    def stop(self, message: str) -> None:
        """Ends the program as the signal would have, with a message."""
        if self.caught == signal.SIGTERM:
            print(message, file=sys.stderr)
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)
