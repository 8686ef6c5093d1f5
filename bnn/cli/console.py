"""What commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000  # columns, where standard output is no terminal: rows stay whole


def say(text: str) -> None:
    """A line about what is being done."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """A result as JSON; numbers that are not finite become null."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1) -> None:
    """A result as a table; the first `left` columns are text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def console() -> Console:
    """The console of standard output."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_page(page: Path) -> None:
    """Opens a page in the browser; without a screen it says so instead."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen:
        say(f"there is no screen here to open a browser on: open {page} yourself")
        return
    typer.launch(str(page.absolute()))
