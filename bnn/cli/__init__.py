"""The command line, `bayesianize`: train, evaluate, predict, compare."""

from __future__ import annotations

from collections.abc import Sequence

from bnn._common.extras import need


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; ends the process with its exit code.

    0: done. 1: it failed. 2: what was asked for makes no sense. 130, 143: interrupted.
    """
    need("typer", "cli")
    from bnn.cli.app import run

    raise SystemExit(run(args))
