"""What the columns of a table are, and what the training part says about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from bnn._common.errors import ArgumentError
from bnn.data.tables.columns import CategoryColumn, Column, NumberColumn, category_name, mean_and_sd, numbers_of
from bnn.data.tables.doubts import refuse_disguised
from bnn.data.tables.table import Cell, Table, is_missing, number

MANY = 50  # different texts that a column may hold without being listed in `categories`
SOME, DISTINCT = 10, 0.8  # nor may it hold more than SOME if they are this share of all: names or dates
_DATE = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[ T].*)?|[0-9]{1,2}:[0-9]{2}(?::[0-9.]+)?")


class Words(Protocol):
    """The words for a missing value, by the kind of column."""

    def words_of(self, kind: type[Column]) -> frozenset[str]:
        """All of them, in lower case."""


def column_kind(rows: Table, name: str, reading: Words, categories: Iterable[str]) -> type[Column]:
    """Whether a column holds numbers or categories, judged by all of its values that are not missing.

    Raises:
        ValueError: the column is not listed in `categories`, and mostly numbers but not all, or numbers that are
            written as text, or more than MANY different texts, or texts of which hardly two are the same.
    """
    if name in categories:
        return CategoryColumn
    cells = _present(rows, name, reading.words_of(NumberColumn))
    texts = [(row, str(cell)) for row, cell in cells if number(cell, rows.decimal) is None]
    named = _present(rows, name, reading.words_of(CategoryColumn))
    if not texts:
        return NumberColumn if cells or not named else CategoryColumn
    refuse_disguised(rows, name, texts, len(cells), f"categories=[{name!r}] if they are categories", "categories")
    row, text = texts[0]
    if 2 * len(texts) <= len(cells):
        raise ArgumentError(
            f"{rows.place(row)}: text in a column of numbers, {text!r} in {name!r} ({len(texts)} of {len(cells)} "
            f"values are no numbers); correct it, or say missing=[{text!r}] if it stands for a missing value, "
            f"or categories=[{name!r}] if they are categories",
            *("missing", "categories"),
        )
    different = len({cell for _, cell in named})
    if different > MANY or (different > SOME and different >= DISTINCT * len(named)):
        date = ", make numbers of the dates (such as days since the first)" if _DATE.fullmatch(text) else ""
        raise ArgumentError(
            f"{rows.place(row)}: column {name!r} holds text ({text!r}) with {different} different values in "
            f"{len(named)} rows, too many for categories; leave it out with drop=[{name!r}]{date}, "
            f"or keep it with categories=[{name!r}]",
            *("drop", "categories"),
        )
    return CategoryColumn


def with_numbers(rows: Table, kinds: Mapping[str, type[Column]], reading: Words) -> Table:
    """The rows with the text of all columns of numbers read, once for all parts."""
    words = reading.words_of(NumberColumn)
    read = {name: numbers_of(rows, name, words).tolist() for name, kind in kinds.items() if kind is NumberColumn}
    return replace(rows, columns=rows.columns | read)


def learned_column(rows: Table, name: str, kind: type[Column], words: frozenset[str]) -> Column | None:
    """The column as the training part `rows` shows it; None if it is the same in every row."""
    cells = [cell for _, cell in _present(rows, name, words)]
    missing = len(cells) < len(rows)
    if kind is NumberColumn and cells:
        values = numbers_of(rows, name, words)
        values = values[~np.isnan(values)]
        mean, sd = mean_and_sd(values)
        if sd > 0:
            return NumberColumn(name, mean, sd, missing)
        if values.min() < values.max():  # by rounding alone
            return NumberColumn(name, mean, abs(mean), missing) if missing else None
    categories = tuple(sorted({category_name(cell) for cell in cells}))
    if len(categories) + missing < 2 or not categories:
        return None
    return CategoryColumn(name, categories, missing)


def _present(rows: Table, name: str, words: frozenset[str]) -> list[tuple[int, Cell]]:
    """(row, cell) of a column's cells that are not missing."""
    return [(row, cell) for row, cell in enumerate(rows.columns[name]) if not is_missing(cell, words)]
