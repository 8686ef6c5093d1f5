"""Runs side by side on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bnn.cli.console import print_table
from bnn.report import Entry, comparison, grouped


def print_comparisons(entries: Sequence[Entry]) -> None:
    """One table for the runs of each data set."""
    for group in grouped(entries):
        found = comparison(group)
        title = f"{found.data}: {found.task}, {found.inputs:,} test inputs; * best, ~ about the same"
        print_table(found.header, found.rows, title=title)
