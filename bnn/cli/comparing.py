"""Runs side by side on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bnn.cli.console import print_table
from bnn.report import Entry, comparison, grouped

SIDE_BY_SIDE = 5  # runs as columns, up to so many: a table that fits on a terminal


def print_comparisons(entries: Sequence[Entry]) -> None:
    """One table for the runs of each data set."""
    for group in grouped(entries):
        found = comparison(group)
        title = f"{found.data}: {found.task}, {found.inputs:,} test inputs; * best, ~ intervals overlap"
        table = [found.header, *found.rows]
        if len(found.runs) <= SIDE_BY_SIDE:
            table = [list(row) for row in zip(*table, strict=True)]
        print_table(table[0], table[1:], title=title)
