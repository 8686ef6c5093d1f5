"""Rows of a table as inputs of a network, with everything learned on the training part."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bnn._common.records import stored_fields
from bnn._common.text import listed
from bnn.data.tables.column_kinds import learned_column
from bnn.data.tables.columns import UNKNOWN, Column, NumberColumn, column_from_dict
from bnn.data.tables.rows_csv import read_csv
from bnn.data.tables.table import Table, is_path, missing_words, rows_of


@dataclass(frozen=True)
class Reading:
    """How a table is read, as it was asked for.

    Args:
        missing: words for a missing value, beside the usual ones.
        unknown: what a category means that training never showed: "warn" (none of them) or "error".
        delimiter, decimal, encoding: of CSV files; None finds out.
        not_missing: words that are no missing values after all, except in columns of numbers.
        text_decimal: the decimal sign of numbers that are text, in rows that are no file: that of the training file.
    """

    missing: tuple[str, ...] = ()
    unknown: str = "warn"
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str = "utf-8-sig"
    not_missing: tuple[str, ...] = ()
    text_decimal: str = "."

    def __post_init__(self) -> None:
        if self.unknown not in UNKNOWN:
            raise ValueError(f"unknown must be one of {UNKNOWN}, got {self.unknown!r}")
        if self.text_decimal not in (".", ","):
            raise ValueError(f"text_decimal must be '.' or ',', got {self.text_decimal!r}")
        missing_words(self.missing, self.not_missing)

    @property
    def words(self) -> frozenset[str]:
        """Every word for a missing value among categories and classes."""
        return missing_words(self.missing, self.not_missing)

    @property
    def words_among_numbers(self) -> frozenset[str]:
        """Every word for a missing value in a column of numbers, where "none" and its like can be nothing else."""
        return missing_words(self.missing)

    def words_of(self, kind: type[Column]) -> frozenset[str]:
        """Every word for a missing value in a column of that kind."""
        return self.words_among_numbers if kind is NumberColumn else self.words

    def rows(self, raw: Any) -> Table:
        """The rows of a CSV file, a list of dicts or a dict of columns."""
        if is_path(raw):
            return read_csv(raw, self.delimiter, self.decimal, self.encoding)
        return rows_of(raw, self.text_decimal)


@dataclass(frozen=True)
class TablePreparation:
    """Turns rows of a table into inputs (N, D) of a network.

    Args:
        columns: those that are used, with what the training part says about them.
        reading: how a table is read.
    """

    kind: ClassVar[str] = "table"

    columns: tuple[Column, ...]
    reading: Reading = Reading()

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("a table needs at least one column to predict from")

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each of the D features."""
        return tuple(feature for column in self.columns for feature in column.features)

    def __call__(self, raw: str | os.PathLike[str] | Iterable[Any] | Mapping[str, Any]) -> Tensor:
        """Features (N, D) float32 of a CSV file, a list of dicts (one per row) or a dict of columns.

        Columns are found by name, in any order; others, such as the target, are ignored.

        >>> from bnn.data.tables.columns import NumberColumn
        >>> TablePreparation((NumberColumn("age", mean=40.0, sd=10.0, missing=False),))([{"age": 50, "name": "Ann"}])
        tensor([[1.]])
        """
        return self.encode(self.reading.rows(raw))

    def encode(self, rows: Table) -> Tensor:
        """Features (N, D) of rows that are read already."""
        rows.need(column.name for column in self.columns)
        reading = self.reading
        parts = [column.encode(rows, reading.words_of(type(column)), reading.unknown) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))

    def cells(self, features: Tensor) -> dict[str, float | str]:
        """The cells of a row by their columns, of its features (D,): what `encode` made of them, taken back."""
        ends = np.cumsum([len(column.features) for column in self.columns])[:-1]
        parts = np.split(features.double().cpu().numpy(), ends)
        return {column.name: column.cell(part) for column, part in zip(self.columns, parts, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        reading = self.reading
        return {
            "kind": self.kind,
            "columns": [column.to_dict() for column in self.columns],
            "missing": list(reading.missing),
            "unknown": reading.unknown,
            "delimiter": reading.delimiter,
            "decimal": reading.decimal,
            "encoding": reading.encoding,
            "not_missing": list(reading.not_missing),
            "text_decimal": reading.text_decimal,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TablePreparation:
        """As `to_dict` stored it."""
        text = (str, type(None))
        types: dict[str, Any] = {"columns": list, "missing": list, "not_missing": list, "unknown": str}
        types |= {"delimiter": text, "decimal": text, "encoding": str, "text_decimal": str}
        read = stored_fields(stored, "table", **types)
        columns = tuple(column_from_dict(column) for column in read.pop("columns"))
        words = {name: tuple(map(str, read[name])) for name in ("missing", "not_missing")}
        return cls(columns, Reading(**read | words))


def learned(rows: Table, kinds: Mapping[str, type[Column]], reading: Reading) -> TablePreparation:
    """The preparation that the training part `rows` teaches; columns that never change are left out with a warning."""
    columns = {name: learned_column(rows, name, kind, reading.words_of(kind)) for name, kind in kinds.items()}
    constant = [repr(name) for name, column in columns.items() if column is None]
    if len(constant) == len(columns):
        raise ValueError(f"{rows.source}: no column to predict from changes in the training part: {listed(constant)}")
    if constant:
        warnings.warn(
            f"{rows.source}: left out, because they are the same in all of the training part: {listed(constant)}",
            stacklevel=3,
        )
    return TablePreparation(tuple(column for column in columns.values() if column is not None), reading)
