"""How far an evaluation is, on terminals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Advance = Callable[[str, int], None]  # (what is being predicted, how many inputs are done more)


@contextmanager
def progress_of(wanted: bool | None, total: int) -> Iterator[Advance]:
    """A bar on terminals that have rich; without one a line for each set of inputs if `wanted`, nothing if None."""
    bar = _bar() if wanted is not False and sys.stderr.isatty() else None
    if bar is not None:
        with bar:
            task = bar.add_task("evaluating", total=total)
            yield lambda what, inputs: bar.update(task, advance=inputs, description=what)
    elif wanted:
        yield _Lines(total)
    else:
        yield lambda what, inputs: None


class _Lines:
    """One line whenever another set begins."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.what = total, 0, ""

    def __call__(self, what: str, inputs: int) -> None:
        if what != self.what:
            print(f"evaluating {what}: {self.done} of {self.total} inputs done", file=sys.stderr, flush=True)
        self.what, self.done = what, self.done + inputs


def _bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
