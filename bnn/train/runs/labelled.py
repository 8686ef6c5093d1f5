"""Labelled rows of one's own, as a finished run takes them: every row counts, and nothing is learned anew."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnn._common.text import listed
from bnn.data.array_preparation import Array, array_of
from bnn.data.array_sets import ArrayTarget
from bnn.data.dataset import Data, Part, TargetScale, Task
from bnn.data.image_files import is_quiet
from bnn.data.tables.preparation import TablePreparation
from bnn.data.tables.table import Table, is_missing, is_path
from bnn.data.tables.target import Target
from bnn.data.target_scale import above_zero, check_known
from bnn.train.runs.given import given
from bnn.train.runs.new_inputs import read_inputs

X, Y = ("x_test", "x"), ("y_test", "y")  # in an .npz file


@dataclass(frozen=True)
class LabelledRows:
    """Reads inputs with their targets as those of a run.

    Args:
        task, classes, target, targets, preparation: of the run, as in `bnn.data.Data`; of a table `targets` are the
            columns that hold them.
        shape: of one prepared input.
        numbered: whether arrays hold classes as 0, 1, ..., whatever their names.
    """

    task: Task
    shape: tuple[int, ...]
    preparation: Any
    classes: tuple[str, ...] = ()
    target: TargetScale | None = None
    targets: tuple[str, ...] = ()
    numbered: bool = False

    def read(self, rows: Any) -> Data:
        """All of them as the test part, and prepared as the run prepares new inputs.

        Args:
            rows: of a table a CSV file, a list of dicts, a dict of columns or a DataFrame, with the target; of images a
                folder with one folder per class; else an .npz file with x and y, or a pair (x, y).
        """
        if isinstance(self.preparation, TablePreparation):
            part = self._of_table(self.preparation, rows)
        elif is_path(rows) and os.path.isdir(rows):
            part = self._of_folder(os.fspath(rows))
        else:
            part = self._of_arrays(rows)
        check_known(part.y, "labelled", self.targets)
        name = os.path.basename(os.path.normpath(rows)) if is_path(rows) else "labelled rows"
        meaning = {"classes": self.classes, "target": self.target, "preparation": self.preparation}
        # a Data has a training part; nothing looks at this one
        return Data(name, self.task, train=part, test=part, targets=self.targets, **meaning)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _of_table(self, preparation: TablePreparation, rows: Any) -> Part:
        takes = (
            f"this run was trained on a table: give a CSV file with its columns and {listed(map(repr, self.targets))}"
        )
        xs, ys = [], []
        for one in given(rows):
            if one.kind not in ("table", "other"):
                raise one.refused(takes)
            table = self._with_target(preparation, preparation.reading.rows(one.value))
            xs.append(preparation.encode(table))
            ys.append(self._table_targets(preparation, table))
        return Part(torch.cat(xs), torch.cat(ys))

    def _with_target(self, preparation: TablePreparation, rows: Table) -> Table:
        """The rows with a target, or with one of several; a warning counts the others."""
        rows.need(self.targets)
        reading = preparation.reading
        words = reading.words if self.task == "classification" else reading.words_among_numbers
        cells = [rows.columns[name] for name in self.targets]
        kept = [row for row in range(len(rows)) if not all(is_missing(column[row], words) for column in cells)]
        if not kept:
            raise ValueError(f"{rows.source}: no row has a target ({listed(map(repr, self.targets))}): nothing to test")
        if len(kept) < len(rows):
            gone = len(rows) - len(kept)
            warnings.warn(
                f"{rows.source}: {gone:,} of {len(rows):,} rows have no target and do not count", stacklevel=6
            )
        return rows.subset(kept)

    def _table_targets(self, preparation: TablePreparation, rows: Table) -> Tensor:
        whole = all(_is_whole(name) for name in self.classes)
        goal = Target(self.targets, self.task, self.classes, whole, preparation.reading.words_among_numbers)
        if self.target is None:
            return goal.labels(rows)
        if self.target.log:
            goal.check_above_zero(rows)
        return self.target.scaled(goal.numbers(rows)).float()

    # -- images and arrays ---------------------------------------------------------------------------------------------

    def _of_folder(self, path: str) -> Part:
        """The images of the folders that are called as the classes are."""
        inside = sorted(name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name)))
        folders = [name for name in inside if not is_quiet(name)]
        unknown = [repr(name) for name in folders if name not in self.classes]
        if unknown or not folders:
            raise ValueError(
                f"{path}: expected one folder of images for each class, {listed(map(repr, self.classes), 10)}; "
                f"there is {listed(unknown) if unknown else 'no folder'}"
            )
        parts = [read_inputs(self.preparation, self.shape, os.path.join(path, name)).part for name in folders]
        labels = [torch.full((len(part),), self.classes.index(n)) for n, part in zip(folders, parts, strict=True)]
        return Part(torch.cat([part.x for part in parts]), torch.cat(labels), parts[0].prepare)

    def _of_arrays(self, rows: Any) -> Part:
        if not is_path(rows) and not (isinstance(rows, tuple | list) and len(rows) == 2):
            raise TypeError(
                f"expected labelled data: the path of an .npz file with x and y, or a pair (x, y); got a "
                f"{type(rows).__name__}"
            )
        x, y = (array_of(rows, X), rows) if is_path(rows) else rows
        part = read_inputs(self.preparation, self.shape, x).part
        targets = array_of(y, Y)
        if targets.ndim == 0 or len(targets) != len(part):
            raise ValueError(f"x and y must be equally long, got {len(part)} inputs and targets {targets.shape}")
        return Part(part.x, self._array_targets(targets), part.prepare)

    def _array_targets(self, y: Array) -> Tensor:
        if self.task == "regression":
            numbers = ArrayTarget("regression").numbers(y)
            width = len(self.targets) if self.target is None else len(self.target.mean)
            if width and numbers.shape[1] != width:
                raise ValueError(f"this run predicts {width} targets of an input; y has {numbers.shape[1]}")
            if self.target is None:
                return numbers.float()
            if self.target.log:
                above_zero(numbers.numpy(), lambda row: f"row {row}", lambda d: f"column {d}", "y")
            return self.target.scaled(numbers).float()
        names: tuple[str | int, ...] = self.classes
        if y.dtype.kind not in "US":
            numbered = self.numbered or not all(map(_is_whole, self.classes))
            names = tuple(range(len(names)) if numbered else map(int, self.classes))
        return ArrayTarget("classification", names, self.classes).labels(y)


def _is_whole(name: str) -> bool:
    """Whether a class is called as a whole number, -1 or 7."""
    return name.removeprefix("-").isdecimal() and name.isascii()
