"""Columns of a table as features: numbers are scaled, categories spread out, missing values marked."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bnn._common.records import stored_fields, stored_number
from bnn._common.text import listed
from bnn.data.tables.table import Cell, Table, is_missing

UNKNOWN = ["warn", "error"]
ROUNDING = 1e-9  # an sd below this share of a column's size is no difference

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, as (x - mean) / sd of the training part; a missing value is the mean, 0.

    Args:
        missing: whether a second feature says that the value is missing (1) or there (0).
    """

    name: str
    mean: float
    sd: float
    missing: bool

    @property
    def features(self) -> list[str]:
        """A name for each feature."""
        return [self.name, *([f"{self.name} is missing"] if self.missing else [])]

    def encode(self, rows: Table, words: frozenset[str], unknown: str) -> Array:
        """Features (N, 1 or 2) of the rows' cells."""
        values = numbers_of(rows, self.name, words)  # (N,), NaN where missing
        gone = np.isnan(values)
        if gone.any() and not self.missing:
            warnings.warn(
                f"{rows.source}: column {self.name!r} has {int(gone.sum())} missing values and had none in training; "
                "they count as its mean",
                stacklevel=5,
            )
        with np.errstate(over="ignore"):
            scaled = np.where(gone, 0.0, (values - self.mean) / self.sd)
        beyond = np.abs(scaled) > np.finfo(np.float32).max
        if beyond.any():
            row = int(beyond.argmax())
            raise ValueError(f"{rows.place(row)}: {values[row]:g} in column {self.name!r} is too large")
        return np.stack([scaled, gone] if self.missing else [scaled], 1)

    def cell(self, features: Array) -> float | str:
        """What was in the cell, of its features (1 or 2,), as far as float32 keeps it; "" where nothing was."""
        return "" if self.missing and features[1] > 0 else self.mean + self.sd * float(features[0])

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": "number", "name": self.name, "mean": self.mean, "sd": self.sd, "missing": self.missing}


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: one feature each, 1 for the row's own and 0 for the others.

    Args:
        categories: those of the training part, sorted.
        missing: whether a missing value is a category of its own, the last.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool

    @property
    def features(self) -> list[str]:
        """A name for each feature."""
        return [*(f"{self.name}={one}" for one in self.categories), *([f"{self.name} is missing"] * self.missing)]

    def encode(self, rows: Table, words: frozenset[str], unknown: str) -> Array:
        """Features (N, categories) of the rows' cells; all are 0 where the category is unknown."""
        positions = {one: index for index, one in enumerate(self.categories)}
        encoded = np.zeros((len(rows), len(self.features)))
        unseen: dict[str, int] = {}  # and where they were seen first
        for row, cell in enumerate(rows.columns[self.name]):
            gone = is_missing(cell, words)
            at = len(positions) if gone and self.missing else None if gone else _position(positions, cell)
            if at is None:
                unseen.setdefault("missing" if gone else repr(cell), row)
            else:
                encoded[row, at] = 1
        if unseen:
            self._tell(rows, unseen, unknown)
        return encoded

    def cell(self, features: Array) -> float | str:
        """What was in the cell, of its features; "" where nothing was, or nothing that training knew."""
        names = [*self.categories, *([""] * self.missing)]
        return names[int(features.argmax())] if features.max() > 0 else ""

    def _tell(self, rows: Table, unseen: dict[str, int], unknown: str) -> None:
        seen = listed(f"{one} ({rows.word} {rows.numbers[row]})" for one, row in unseen.items())
        message = f"{rows.source}: not in the training part of column {self.name!r}: {seen}"
        if unknown == "error":
            raise ValueError(f"{message}; known are {listed(map(repr, self.categories), 10)}")
        warnings.warn(f"{message}; such a row counts as none of the categories", stacklevel=6)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        stored = {"kind": "category", "name": self.name, "categories": list(self.categories)}
        return stored | {"missing": self.missing}


Column = NumberColumn | CategoryColumn


def column_from_dict(stored: Any) -> Column:
    """A column as `to_dict` stored it."""
    kind = stored.get("kind") if isinstance(stored, dict) else None
    if kind == "number":
        read = stored_fields(stored, "column of numbers", name=str, mean=(int, float), sd=(int, float), missing=bool)
        mean, sd = stored_number(read["mean"], "mean"), stored_number(read["sd"], "sd", positive=True)
        return NumberColumn(read["name"], mean, sd, read["missing"])
    if kind == "category":
        read = stored_fields(stored, "column of categories", name=str, categories=list, missing=bool)
        return CategoryColumn(read["name"], tuple(map(str, read["categories"])), read["missing"])
    raise ValueError(f"unknown kind of column {kind!r}; expected one of ['category', 'number']")


def numbers_of(rows: Table, name: str, words: frozenset[str]) -> Array:
    """The cells of a column as numbers (N,), NaN where missing; text and infinity are errors that name the place."""
    cells = rows.columns[name]
    if all(isinstance(cell, float) and not math.isinf(cell) for cell in cells):  # read already
        return np.array(cells)
    values = np.full(len(rows), np.nan)
    for row, cell in enumerate(cells):
        if is_missing(cell, words):
            continue
        value = rows.number(cell)
        if value is None:
            sign = "" if rows.decimal == "." else f" with {rows.decimal!r} for a decimal sign"
            raise ValueError(f"{rows.place(row)}: {cell!r} in column {name!r}, which holds numbers{sign}")
        if math.isinf(value):
            raise ValueError(f"{rows.place(row)}: {cell!r} in column {name!r} is not a finite number")
        values[row] = value
    return values


def mean_and_sd(values: Array) -> tuple[float, float]:
    """Mean and standard deviation of (N,) finite numbers, however large.

    The sd of numbers that are equal, or differ by rounding alone (less than ROUNDING of their size), is exactly 0.
    """
    if values.min() == values.max():
        return float(values[0]), 0.0
    size = float(np.abs(values).max())
    mean, sd = float((values / size).mean()), float((values / size).std())
    return size * mean, size * sd if sd > ROUNDING else 0.0


def category_name(cell: Cell) -> str:
    """The name of a category: 2.0 and 2 are the same number, so the same name."""
    if isinstance(cell, str):
        return cell
    return str(int(cell)) if cell.is_integer() else str(cell)


def _position(positions: dict[str, int], cell: Cell) -> int | None:
    """Which category a cell is; a number that was no text may be written in two ways, and so may True."""
    names = [category_name(cell), str(cell)] if not isinstance(cell, str) else [cell]
    if cell in ("True", "False"):
        names += [str(cell).lower(), str(cell).upper()]
    return next((positions[name] for name in names if name in positions), None)
