"""Opening a page in the browser, where there is a screen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from bnn.cli.console import say


def open_page(page: Path) -> None:
    """Opens the page; without a screen it says so instead."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen:
        say(f"there is no screen here to open a browser on: open {page} yourself")
        return
    typer.launch(str(page.absolute()))
