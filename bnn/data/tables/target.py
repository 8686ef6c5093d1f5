"""The columns to predict: rows without them, their task, classes and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn._common.errors import ArgumentError
from bnn._common.text import listed
from bnn.data.dataset import TASKS, TargetScale, Task
from bnn.data.tables.column_kinds import refuse_disguised
from bnn.data.tables.columns import numbers_of
from bnn.data.tables.preparation import Reading
from bnn.data.tables.table import Cell, Table, is_missing, number
from bnn.data.target_scale import Values, above_zero, check_known

FEW = 20  # different whole numbers that are classes where the task is not given
DOUBTFUL = ("na", "n/a", "nan", "null", "none")  # stand for a missing value, and may be names


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Args:
        names: of the columns; of classes one.
        task: "classification" or "regression".
        classes: in the order of the labels; empty for regression.
        whole: whether classes are whole numbers, which may be written as 1 or 1.0.
        missing: words for a missing one of several real targets.
    """

    names: tuple[str, ...]
    task: Task
    classes: tuple[str, ...] = ()
    whole: bool = False
    missing: frozenset[str] = frozenset()

    def labels(self, rows: Table) -> Tensor:
        """The rows' classes as int64 (N,)."""
        (column,) = self.names
        positions: Mapping[str, int] = {one: index for index, one in enumerate(self.classes)}
        names = [_class_name(cell, rows.decimal, self.whole) for cell in rows.columns[column]]
        for row, name in enumerate(names):
            if name not in positions:
                raise ValueError(
                    f"{rows.place(row)}: class {name!r} of column {column!r} does not occur in the training file, "
                    f"which has {listed(map(repr, self.classes), 10)}; add rows of it there, or leave the line out here"
                )
        return torch.tensor([positions[name] for name in names])

    def numbers(self, rows: Table) -> Values:
        """The rows' targets (N, D) in their own units, NaN where one of several is missing."""
        return np.stack([numbers_of(rows, name, self.missing) for name in self.names], 1)

    def check_above_zero(self, rows: Table) -> None:
        """Raises, naming rows, unless all targets are above 0."""
        y = self.numbers(rows)
        above_zero(y, lambda row: f"{rows.word} {rows.numbers[row]}", lambda d: repr(self.names[d]), rows.source)

    def scale(self, rows: Table, positive: bool = False) -> TargetScale:
        """Mean and sd of the training part; of the logarithms where targets are `positive`."""
        values = self.numbers(rows)
        check_known(torch.from_numpy(values), "training", self.names)
        found = TargetScale.learned(values, positive)
        if 0.0 in found.sd:
            column = found.sd.index(0.0)
            known = values[:, column][~np.isnan(values[:, column])]
            raise ValueError(
                f"{rows.source}: the target {self.names[column]!r} is {known[0]:g} in all of the training part"
            )
        return found


def find_target(rows: Table, names: Sequence[str], task: Task | None, missing: frozenset[str]) -> Target:
    """The target of a table whose rows have one.

    Where `task` is None, text and at most 20 different whole numbers are classes, other numbers are real targets, as
    several targets always are.

    Args:
        missing: words for a missing one of several.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"unknown task {task!r}; expected one of {TASKS}, or None")
    if len(names) == 1:
        return _one_target(rows, names[0], task)
    if task == "classification":
        raise ArgumentError(
            f"several targets must be numbers, and classes are one: name one of {list(names)}", "target", "task"
        )
    for name in names:
        there = [row for row, cell in enumerate(rows.columns[name]) if not is_missing(cell, missing)]
        if there:  # what is text is named as in a single target
            _one_target(rows.subset(there), name, "regression")
    return Target(tuple(names), "regression", missing=missing)


def _one_target(rows: Table, name: str, task: Task | None) -> Target:
    cells = rows.columns[name]
    values = [number(cell, rows.decimal) for cell in cells]
    texts = [row for row, value in enumerate(values) if value is None]
    if task != "classification":
        words = [(row, str(cells[row])) for row in texts]
        refuse_disguised(rows, name, words, len(cells), "task='classification' if they are classes", "task")
    first = "" if not texts else str(cells[texts[0]])
    if texts and (task == "regression" or (task is None and 2 * len(texts) <= len(cells))):
        raise ArgumentError(
            f"{rows.place(texts[0])}: text in a target of numbers, {first!r} in {name!r} ({len(texts)} of "
            f"{len(cells)} are no numbers); correct it, say missing=[{first!r}] if it stands for a missing value, "
            "or say task='classification'",
            *("missing", "task"),
        )
    whole = not texts and all(float(value or 0).is_integer() for value in values)
    classes = {_class_name(cell, rows.decimal, whole) for cell in cells}
    if task is None:
        task = "classification" if texts or (whole and len(classes) <= FEW) else "regression"
    if task == "regression":
        return Target((name,), task)
    if len(classes) < 2:
        raise ValueError(
            f"{rows.source}: the target {name!r} is {cells[0]!r} in every row; there is nothing to tell apart"
        )
    return Target((name,), task, tuple(sorted(classes, key=_order)), whole)


def _class_name(cell: Cell, decimal: str, whole: bool) -> str:
    value = number(cell, decimal)
    return str(int(value)) if whole and value is not None and value.is_integer() else str(cell)


def _order(name: str) -> tuple[int, float, str]:
    """Numbers first and by size, then text."""
    value = number(name)
    return (1, 0.0, name) if value is None else (0, value, name)


def with_some_target(rows: Table, names: Sequence[str], reading: Reading, drop: bool) -> Table:
    """The rows that have at least one of several real targets; without `drop`, others are an error."""
    rows.need(names)
    words = reading.words_among_numbers
    gone = [row for row in range(len(rows)) if all(is_missing(rows.columns[name][row], words) for name in names)]
    if not gone:
        return rows
    if len(gone) == len(rows):
        raise ValueError(f"{rows.source}: all of the targets {list(names)} are missing in every row")
    if not drop:
        raise ArgumentError(
            f"{rows.source}: all of the targets {list(names)} are missing on line {_lines(rows, gone)}; fill one in, "
            "or say drop_missing_target=True to leave such rows out",
            "drop_missing_target",
        )
    left_out = set(gone)
    return rows.subset(row for row in range(len(rows)) if row not in left_out)


def with_targets(rows: Table, name: str, reading: Reading, task: Task | None, drop: bool) -> Table:
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


def _mostly_numbers(rows: Table, name: str, reading: Reading) -> bool:
    """Whether at least half of what is surely no missing value are numbers."""
    cells = [cell for cell in rows.columns[name] if not is_missing(cell, reading.words_among_numbers)]
    return bool(cells) and 2 * sum(number(cell, rows.decimal) is not None for cell in cells) >= len(cells)


def _lines(rows: Table, index: Sequence[int]) -> str:
    return listed((str(rows.numbers[row]) for row in index), 5).replace(";", ",")
