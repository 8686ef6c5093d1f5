"""Where the program `bayesianize` starts: ready for Ctrl-C before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _interrupted(number: int, frame: FrameType | None) -> None:
    print("\ninterrupted", file=sys.stderr, flush=True)
    os._exit(130)  # an exception in the middle of an import would come out as another


def main() -> None:
    """Runs the command line."""
    before = signal.signal(signal.SIGINT, _interrupted)
    from bnn.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
