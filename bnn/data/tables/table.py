"""Tables before they are numbers: cells by column, each with the place it came from."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bnn._common.text import listed, nearest

MISSING = ("", "na", "n/a", "<na>", "nan", "null", "none", "?")  # compared without case
Cell = str | float

_DIGITS = re.compile(r"[+-]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:[.][0-9]{3})+")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """Cells by column, as text or numbers.

    Args:
        source: what the rows came from, for messages.
        columns: {name: N cells}.
        numbers: the line (of a file) or row (of a list, from 0) each came from (N,).
        word: "line" or "row".
        decimal: the decimal sign of numbers in text.
    """

    source: str
    columns: dict[str, list[Cell]]
    numbers: list[int]
    word: str = "line"
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, row: int) -> str:
        """Where a row came from."""
        return f"{self.source}, {self.word} {self.numbers[row]}"

    def number(self, cell: Cell) -> float | None:
        """A cell as a number with the decimal sign of the rows; None if it is text.

        Where rows come from a program, text may also have a point, but for 1.000: that is a thousand to some.
        """
        value = number(cell, self.decimal)
        if value is None and self.word == "row" and not _THOUSANDS.fullmatch(str(cell)):
            return number(cell)
        return value

    def subset(self, index: Iterable[int], source: str | None = None) -> Table:
        """Only the rows at `index`."""
        index = list(index)
        columns = {name: [cells[i] for i in index] for name, cells in self.columns.items()}
        return replace(self, source=source or self.source, columns=columns, numbers=[self.numbers[i] for i in index])

    def need(self, names: Iterable[str]) -> None:
        """An error that names the columns among `names` that are not there."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            data = any(number(name) is not None for name in self.columns)
            hint = "; the first line must name the columns, and looks like data" if data else ""
            raise ValueError(
                f"{self.source}: no column {listed(map(repr, absent))}; its columns are "
                f"{listed(map(repr, self.columns), 20)}{nearest(absent[0], self.columns)}{hint}"
            )


def number(cell: Cell, decimal: str = ".") -> float | None:
    """A cell as a number, infinite if it says so or is too large; None if it is text.

    >>> number("1e3"), number("3,5"), number("3,5", decimal=","), number("1e400"), number("1_000")
    (1000.0, None, 3.5, inf, None)
    """
    if isinstance(cell, float):
        return cell
    if decimal == ",":
        if "." in cell:
            return None
        cell = cell.replace(",", ".")
    if _DIGITS.fullmatch(cell) or _INFINITE.fullmatch(cell):
        return float(cell)
    return None


def is_missing(cell: Cell, words: frozenset[str]) -> bool:
    """Whether a cell holds nothing; `words` as `missing_words` gives them."""
    return cell.lower() in words if isinstance(cell, str) else math.isnan(cell)


def missing_words(more: Iterable[str] = (), without: Iterable[str] = ()) -> frozenset[str]:
    """The words for a missing value, `more` among them, `without` not."""
    more, without = ({word.strip().lower() for word in words} for words in (more, without))
    if more & without:
        raise ValueError(f"{sorted(more & without)} cannot be in missing and in not_missing, too")
    if "" in without or without - set(MISSING):
        raise ValueError(
            f"not_missing takes words that are read as missing otherwise, {list(MISSING[1:])} in any case; "
            f"got {sorted(without)}"
        )
    return (frozenset(MISSING) | more) - without


def rows_of(raw: Any, decimal: str = ".") -> Table:
    """A list of dicts, one per row, or a dict of columns, as rows; `decimal` is the sign of numbers that are text."""
    if isinstance(raw, Mapping):
        columns = {str(name): _column(name, cells) for name, cells in raw.items()}
        lengths = {name: len(cells) for name, cells in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all columns must be equally long, got {lengths}")
        count = next(iter(lengths.values()), 0)
    elif isinstance(raw, Sequence) and not isinstance(raw, str | bytes) and all(isinstance(r, Mapping) for r in raw):
        columns, count = _columns(raw), len(raw)
    else:
        raise TypeError(
            "expected the path of a CSV file, a list of dicts (one per row), or a dict of columns (a pandas table is "
            f"one after .to_dict('list')); got a {type(raw).__name__}"
        )
    if count == 0:
        raise ValueError("the table has no rows")
    return Table("the table", columns, list(range(count)), "row", decimal)


def is_path(raw: Any) -> bool:
    """Whether `raw` names a file."""
    return isinstance(raw, str | os.PathLike)


def _column(name: Any, cells: Any) -> list[Cell]:
    if isinstance(cells, Tensor | np.ndarray):
        cells = cells.tolist()
    if isinstance(cells, str | numbers.Number) or not isinstance(cells, Iterable):
        raise TypeError(f"column {name!r} must be a list of cells, got {cells!r}; one row is a list of one dict")
    return [_cell(cell) for cell in cells]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Cell]]:
    """By column; a name that only some rows have is an error."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        without = next((i for i, row in enumerate(rows) if name not in row), None)
        if without is not None:
            raise ValueError(f"row {without} of the table has no {name!r}, others have; None is a missing value")
    return {str(name): [_cell(row[name]) for row in rows] for name in names}


def _cell(value: Any) -> Cell:
    """Text without blanks around it, or a number; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Real):
        return _as_float(value)
    return str(value).strip()


def _as_float(value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # a whole number beyond all floats
