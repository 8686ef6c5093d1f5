"""What in a table may be meant otherwise than it is read: warnings that name it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from bnn._common.text import listed
from bnn.data.dataset import Data, Part
from bnn.data.tables.columns import Column, NumberColumn, category_name
from bnn.data.tables.rows import Rows, is_missing

ENOUGH = 10  # rows; in fewer, whole numbers that follow each other are no surprise


def warn_of_columns(
    rows: Rows, kinds: Mapping[str, type[Column]], words: frozenset[str], target: str, classes: Iterable[str]
) -> None:
    """Warns of columns that look like row numbers, and of categories or classes that differ in case or blanks alone."""
    for name, kind in kinds.items():
        if kind is NumberColumn:
            _warn_of_row_number(rows, name)
        else:
            cells = rows.columns[name]
            _warn_of_alike(rows, name, {category_name(cell) for cell in cells if not is_missing(cell, words)})
    _warn_of_alike(rows, target, classes)


def _warn_of_alike(rows: Rows, name: str, values: Iterable[str]) -> None:
    alike: dict[str, list[str]] = {}
    for value in sorted(values):
        alike.setdefault(" ".join(value.casefold().split()), []).append(value)
    groups = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    if groups:
        warnings.warn(
            f"{rows.source}: values of column {name!r} differ in case or blanks alone and are kept apart: "
            f"{listed(groups)}; write them alike if they mean the same",
            stacklevel=4,
        )


def warn_of_shared_rows(data: Data) -> None:
    """Warns of test rows that occur in training, too: all features and the target are the same."""
    if data.test is None:
        return
    known = set(_keys(data.train))
    shared = sum(key in known for key in _keys(data.test))
    if shared:
        warnings.warn(
            f"{data.name}: {shared} of {len(data.test)} test rows occur in the training part, too (the same features "
            "and target); if they are copies, remove them: what is known already is no test",
            stacklevel=3,
        )


def _warn_of_row_number(rows: Rows, name: str) -> None:
    values = np.sort(np.array(rows.columns[name], dtype=np.float64))  # NaN, where missing, comes last
    exact = len(values) >= ENOUGH and np.abs(values).max() < 2**53  # and whole numbers are told apart
    if exact and values[0].is_integer() and (np.diff(values) == 1).all():
        warnings.warn(
            f"{rows.source}: column {name!r} holds every whole number from {values[0]:.0f} to {values[-1]:.0f} once, "
            f"like a row number; if it is one, leave it out with drop=[{name!r}]",
            stacklevel=4,
        )


def _keys(part: Part) -> list[bytes]:
    """A row each, features and target, as bytes that are equal where the row is."""
    x, y = part.tensors()
    rows = torch.cat([x.double(), y.double().reshape(len(y), -1)], 1) + 0.0  # -0 is 0
    return [row.tobytes() for row in rows.numpy()]
