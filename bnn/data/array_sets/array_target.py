"""Targets in arrays: labels of any kind as 0, 1, ..., or real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn._common.errors import ArgumentError
from bnn._common.text import listed, nearest
from bnn.data.array_sets.array_files import Array
from bnn.data.array_sets.array_preparation import refuse_bad
from bnn.data.dataset import TASKS, TargetScale, Task

FEW = 20  # different whole numbers that are classes however few rows there are


@dataclass(frozen=True)
class ArrayTarget:
    """How targets are read.

    Args:
        values: of y, sorted, for label 0, 1, ...; empty for regression.
        classes: their names.
    """

    task: Task
    values: tuple[str | int, ...] = ()
    classes: tuple[str, ...] = ()

    def labels(self, y: Array, what: str = "y") -> Tensor:
        """Labels int64 (N,)."""
        y = _flat(y, what)
        positions = {value: index for index, value in enumerate(self.values)}
        names = _values(y, what)
        for row, value in enumerate(names):
            if value not in positions:
                raise ValueError(
                    f"{what}[{row}] is {value!r}, which is none of the classes "
                    f"{listed(map(repr, self.values), 10)}{nearest(value, self.values)}"
                )
        return torch.tensor([positions[value] for value in names])

    def numbers(self, y: Array, what: str = "y") -> Tensor:
        """Real targets (N, D), float64."""
        refuse_bad(y, what)
        if y.ndim not in (1, 2):
            raise ValueError(f"{what} must have the shape (N,) or (N, D), got {y.shape}")
        return torch.from_numpy(y.astype(np.float64)).reshape(len(y), -1)


def find_array_target(y: Array, task: Task | None, classes: Sequence[str] | None) -> ArrayTarget:
    """The task of targets: text and whole numbers are classes where nothing else is said, other numbers are real.

    Args:
        classes: names; of labels 0, 1, ... or, where y holds text, of all classes in their order.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"unknown task {task!r}; expected one of {TASKS}, or None")
    real = y.dtype.kind == "f"
    if task == "regression" or (task is None and real and classes is None):
        return ArrayTarget("regression")
    found = sorted(set(_values(_flat(y, "y"), "y")), key=lambda one: (isinstance(one, str), one))
    if task is None and classes is None and not isinstance(found[0], str) and len(found) > max(FEW, len(y) // 2):
        raise ArgumentError(
            f"y holds {len(found)} different whole numbers in {len(y)} rows: say task='regression', "
            "or task='classification'",
            "task",
        )
    if classes is None:
        names: tuple[str, ...] = tuple(map(str, found))
        return ArrayTarget("classification", tuple(found), names)
    names = tuple(map(str, classes))
    known = names if isinstance(found[0], str) else tuple(range(len(names)))
    target = ArrayTarget("classification", known, names)
    target.labels(y)  # whatever is none of them is named
    return target


def learned_scale(y: Tensor) -> TargetScale:
    """Mean and sd of real targets (N, D) of the training part."""
    mean, sd = y.mean(0), y.std(0, correction=0)
    constant = (y.min(0).values == y.max(0).values).nonzero()[:, 0].tolist()
    if constant:
        raise ValueError(f"column {constant[0]} of y is {y[0, constant[0]]:g} in all of the training part")
    return TargetScale(tuple(mean.tolist()), tuple(sd.tolist()))


def _flat(y: Array, what: str) -> Array:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise ValueError(f"labels {what} must have the shape (N,), got {y.shape}; y.argmax(1) if they are one-hot")
    return y


def _values(y: Array, what: str) -> list[str | int]:
    """Labels as text or whole numbers."""
    if y.dtype.kind in "US":
        return [one.decode() if isinstance(one, bytes) else one for one in y.tolist()]
    refuse_bad(y, what)
    row = int((y != np.floor(y)).argmax()) if y.dtype.kind == "f" else 0
    if y[row] != np.floor(y[row]):
        message = f"{what}[{row}] is {y[row]}: labels are whole numbers or text; say task='regression'?"
        raise ArgumentError(message, "task")
    return [int(one) for one in y.tolist()]
