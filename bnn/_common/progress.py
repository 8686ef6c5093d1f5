"""How far a long task is: a bar on terminals that have rich, lines or nothing elsewhere; always on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Advance = Callable[[str, int], None]  # (what is being done, how many are done more)


@contextmanager
def progress_of(
    wanted: bool | None, total: int, title: str = "evaluating", unit: str = "inputs", transient: bool = False
) -> Iterator[Advance]:
    """A bar on terminals that have rich; elsewhere a line whenever another part begins if `wanted`, nothing if None.

    Args:
        total: how many there are in all.
        title: what is being done, before the first part begins.
        unit: what is counted.
        transient: the bar disappears at the end.
    """
    bar = _counting_bar(transient) if wanted is not False and sys.stderr.isatty() else None
    if bar is not None:
        with bar:
            task = bar.add_task(title, total=total)
            yield lambda what, more: bar.update(task, advance=more, description=what)
    elif wanted:
        yield _Lines(total, title, unit)
    else:
        yield lambda what, more: None


def rich_bar(*columns: Any, **options: Any) -> Any:
    """A bar of rich with these columns, on standard error; needs rich."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), **options)


class _Lines:
    """One line whenever another part begins."""

    def __init__(self, total: int, title: str, unit: str) -> None:
        self.total, self.title, self.unit, self.done, self.what = total, title, unit, 0, ""

    def __call__(self, what: str, more: int) -> None:
        if what != self.what:
            print(f"{self.title} {what}: {self.done} of {self.total} {self.unit} done", file=sys.stderr, flush=True)
        self.what, self.done = what, self.done + more


def _counting_bar(transient: bool) -> Any:
    """What is being done, a bar, how many of how many, the time left; None without rich."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    return rich_bar(*columns, transient=transient)
