"""What the columns of a table are, and what the training part says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from bnn.data.tables.columns import CategoryColumn, Column, NumberColumn, category_name, mean_and_sd, numbers_of
from bnn.data.tables.rows import Rows, is_missing, number

MANY = 50  # different texts that a column may hold without being listed in `categories`


def column_kind(rows: Rows, name: str, words: frozenset[str], categories: Iterable[str]) -> type[Column]:
    """Whether a column holds numbers or categories, judged by all of its values that are not missing.

    Raises:
        ValueError: mostly numbers but not all, or more than MANY different texts, and not listed in `categories`.
    """
    if name in categories:
        return CategoryColumn
    cells = [(row, cell) for row, cell in enumerate(rows.columns[name]) if not is_missing(cell, words)]
    texts = [(row, cell) for row, cell in cells if number(cell, rows.decimal) is None]
    if not texts:
        return NumberColumn
    row, text = texts[0]
    if 2 * len(texts) <= len(cells):
        raise ValueError(
            f"{rows.place(row)}: text in a column of numbers, {text!r} in {name!r} ({len(texts)} of {len(cells)} "
            f"values are no numbers); correct it, or say missing=[{text!r}] if it stands for a missing value, "
            f"or categories=[{name!r}] if they are categories"
        )
    different = len({cell for _, cell in cells})
    if different > MANY:
        raise ValueError(
            f"{rows.place(row)}: column {name!r} holds text ({text!r}) with {different} different values, too many for "
            f"categories; leave it out with drop=[{name!r}], or keep it with categories=[{name!r}]"
        )
    return CategoryColumn


def with_numbers(rows: Rows, kinds: Mapping[str, type[Column]], words: frozenset[str]) -> Rows:
    """The rows with the text of all columns of numbers read, once for all parts."""
    read = {name: numbers_of(rows, name, words).tolist() for name, kind in kinds.items() if kind is NumberColumn}
    return replace(rows, columns=rows.columns | read)


def learned_column(rows: Rows, name: str, kind: type[Column], words: frozenset[str]) -> Column | None:
    """The column as the training part `rows` shows it; None if it is the same in every row."""
    cells = [cell for cell in rows.columns[name] if not is_missing(cell, words)]
    missing = len(cells) < len(rows)
    if kind is NumberColumn and cells:
        values = numbers_of(rows, name, words)
        values = values[~np.isnan(values)]
        mean, sd = mean_and_sd(values)
        if sd > 0:
            return NumberColumn(name, mean, sd, missing)
    categories = tuple(sorted({category_name(cell) for cell in cells}))
    if len(categories) + missing < 2 or not categories:
        return None
    return CategoryColumn(name, categories, missing)
