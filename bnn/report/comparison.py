"""Runs side by side: the numbers once, for the terminal, for JSON and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bnn.report.columns import Cell, Column, columns_of
from bnn.report.entry import Entry, named_apart

SAME_TIME = 1.1  # times that differ by less are not told apart
MARKS = {"best": "*", "same": "~", "": ""}


@dataclass(frozen=True)
class Comparison:
    """Runs on the same data. Rows are runs, columns are numbers; the best of each column is marked."""

    data: str
    task: str
    inputs: int  # that were scored; the most, where runs differ
    fewest: int
    runs: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, key: str) -> Column | None:
        """The column of this name, if something was measured for it."""
        return next((one for one in self.columns if one.key == key), None)

    @property
    def header(self) -> list[str]:
        """What stands above the columns of `rows`."""
        return ["run", *(column.full_title for column in self.columns)]

    @property
    def rows(self) -> list[list[str]]:
        """Text for a terminal: `*` is the best of a column, `~` of an interval that overlaps its."""
        cells = [[f"{cell.text}{MARKS[cell.mark]}" for cell in column.cells] for column in self.columns]
        return [[name, *(column[i] for column in cells)] for i, name in enumerate(self.runs)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: {"data", "task", "inputs", "runs": {name: {column: {"value", "low", "high", "mark"}}}}."""
        runs = {name: {c.key: _plain(c.cells[i]) for c in self.columns} for i, name in enumerate(self.runs)}
        return {"data": self.data, "task": self.task, "inputs": self.inputs, "runs": runs}


def _plain(cell: Cell) -> dict[str, Any]:
    interval = {} if cell.low is None else {"low": cell.low, "high": cell.high}
    return {"value": cell.value, **interval, "mark": cell.mark}


def comparison(entries: Sequence[Entry]) -> Comparison:
    """The numbers of runs on the same data, side by side, the best of each column marked.

    Raises:
        ValueError: there are none, or they are of different data or tasks (`grouped` takes these apart).
    """
    if not entries:
        raise ValueError("expected at least one run to compare, got none")
    kinds = list(dict.fromkeys((one.evaluation.data, one.evaluation.task) for one in entries))
    if len(kinds) > 1:
        found = ", ".join(f"{data} ({task})" for data, task in kinds)
        raise ValueError(f"expected runs on the same data, got {found}: compare the groups of bnn.report.grouped")
    found_in = [entry.evaluation for entry in entries]
    data, task = kinds[0]
    inputs = [one.inputs for one in found_in]
    names = tuple(one.name for one in named_apart(entries))
    return Comparison(data, task, max(inputs), min(inputs), names, tuple(map(marked, columns_of(found_in))))


def marked(column: Column) -> Column:
    """Marks the best cell, and those about as good: of an interval that overlaps the best one's."""
    measured = [cell for cell in column.cells if cell.value is not None]
    if column.better is None or len(measured) < 2:
        return column
    best = min(measured, key=lambda cell: _rank(cell, column.better))
    return replace(column, cells=tuple(replace(c, mark=_mark(c, best, column)) for c in column.cells))


def _rank(cell: Cell, better: str | float | None) -> float:
    assert cell.value is not None
    if isinstance(better, float):
        return abs(cell.value - better)
    return -cell.value if better == "higher" else cell.value


def _mark(cell: Cell, best: Cell, column: Column) -> str:
    if cell.value is None or best.value is None:
        return ""
    if cell is best or _rank(cell, column.better) == _rank(best, column.better):
        return "best"
    if column.key == "time":
        return "same" if cell.value <= SAME_TIME * best.value else ""
    if cell.low is None or cell.high is None or best.low is None or best.high is None:
        return ""
    return "same" if cell.low <= best.high and best.low <= cell.high else ""
