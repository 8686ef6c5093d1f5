"""Rows without a target: refused or left out; a word such as "none" that may be a class is asked about."""

from __future__ import annotations

from collections.abc import Sequence

from bnn._common.errors import ArgumentError
from bnn._common.text import listed
from bnn.data.dataset import Task
from bnn.data.tables.rows import Rows, is_missing, number
from bnn.data.tables.table import Reading

DOUBTFUL = ("na", "n/a", "nan", "null", "none")  # stand for a missing value, and may be names


def with_targets(rows: Rows, name: str, reading: Reading, task: Task | None, drop: bool) -> Rows:
    """The rows that have a target.

    Args:
        rows: the table.
        name: of the target.
        reading: which words stand for a missing value.
        task: as it was asked for.
        drop: leave out rows without a target; an error otherwise.

    Raises:
        ValueError: a target is missing and `drop` is not set; or one of DOUBTFUL stands among classes, and neither
            missing= nor not_missing= says which of both it is.
    """
    rows.need([name])
    cells = rows.columns[name]
    classes = task == "classification" or (task is None and not _mostly_numbers(rows, name, reading))
    words = reading.words if classes else reading.words_among_numbers
    missing = [row for row, cell in enumerate(cells) if is_missing(cell, words)]
    if not missing:
        return rows
    said = {word.strip().lower() for word in reading.missing}
    doubtful = [row for row in missing if str(cells[row]).lower() in DOUBTFUL and str(cells[row]).lower() not in said]
    names = sorted({str(cells[row]) for row in doubtful})
    if classes and doubtful and len(missing) < len(rows):
        raise ArgumentError(
            f"{rows.source}: the target {name!r} is {listed(map(repr, names))} on line {_lines(rows, doubtful)}, which "
            f"is read as a missing value; if it is a class, say not_missing={names}; if it is missing there, "
            f"say missing={names} and drop_missing_target=True",
            *("not_missing", "missing", "drop_missing_target"),
        )
    if not drop:
        hint = f"; if it is a class, say task='classification' and not_missing={names}" if names and not task else ""
        raise ArgumentError(
            f"{rows.source}: the target {name!r} is missing on line {_lines(rows, missing)}; fill it in, "
            f"or say drop_missing_target=True to leave such rows out{hint}",
            *(("drop_missing_target", "task", "not_missing") if hint else ("drop_missing_target",)),
        )
    if len(missing) == len(rows):
        raise ValueError(f"{rows.source}: the target {name!r} is missing in every row")
    gone = set(missing)
    return rows.subset(row for row in range(len(rows)) if row not in gone)


def _mostly_numbers(rows: Rows, name: str, reading: Reading) -> bool:
    """Whether at least half of what is surely no missing value are numbers."""
    cells = [cell for cell in rows.columns[name] if not is_missing(cell, reading.words_among_numbers)]
    return bool(cells) and 2 * sum(number(cell, rows.decimal) is not None for cell in cells) >= len(cells)


def _lines(rows: Rows, index: Sequence[int]) -> str:
    return listed((str(rows.numbers[row]) for row in index), 5).replace(";", ",")
