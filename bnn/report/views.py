"""What the template lays out as it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableView:
    """A plain table, folded away unless it is `open`: first cells are headings."""

    title: str
    header: list[str]
    rows: list[list[str]]
    open: bool = False
    note: str = ""
