"""What the columns of a table are, what the training part says about them, and what may be meant otherwise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from bnn._common.errors import ArgumentError, ArgumentWarning
from bnn._common.text import listed
from bnn.data.dataset import Data, Part
from bnn.data.tables.columns import CategoryColumn, Column, NumberColumn, category_name, mean_and_sd, numbers_of
from bnn.data.tables.table import Cell, Table, is_missing, number

MANY = 50  # different texts that a column may hold without being listed in `categories`
SOME, DISTINCT = 10, 0.8  # nor may it hold more than SOME if they are this share of all: names or dates
_DATE = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[ T].*)?|[0-9]{1,2}:[0-9]{2}(?::[0-9.]+)?")
ENOUGH = 10  # rows; in fewer, whole numbers that follow each other are no surprise

_UNIT = r"(?:US\$|[$€£¥₹₽₩₺%‰]|EUR|USD|GBP|CHF)"
_DRESSED = re.compile(rf"([+-]?)\s*{_UNIT}?\s*([+-]?)([0-9.,].*?)\s*{_UNIT}?", re.IGNORECASE)
_GROUPS = {  # of three digits, the decimal sign not among what separates them; {decimal sign: pattern}
    ".": re.compile(r"[0-9]{1,3}(?:[,'\u2019 _\u00a0\u202f][0-9]{2,3})*[,'\u2019 _\u00a0\u202f][0-9]{3}(?:[.][0-9]*)?"),
    ",": re.compile(r"[0-9]{1,3}(?:[.'\u2019 _\u00a0\u202f][0-9]{2,3})*[.'\u2019 _\u00a0\u202f][0-9]{3}(?:,[0-9]*)?"),
}
_OTHER = {".": ",", ",": "."}


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


def warn_of_columns(
    rows: Table, kinds: Mapping[str, type[Column]], words: frozenset[str], target: str, classes: Iterable[str]
) -> None:
    """Warns of columns that look like row numbers, and of categories or classes that differ in case or blanks alone."""
    for name, kind in kinds.items():
        if kind is NumberColumn:
            _warn_of_row_number(rows, name)
        else:
            cells = rows.columns[name]
            _warn_of_alike(rows, name, {category_name(cell) for cell in cells if not is_missing(cell, words)})
    _warn_of_alike(rows, target, classes)


def _warn_of_alike(rows: Table, name: str, values: Iterable[str]) -> None:
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
    """Warns of rows that are tests, or set aside for a guarantee, and copies: all features and the target are those of
    a row of training; for a guarantee also of validation.
    """
    known = set(_keys(data.train))
    shared = 0 if data.test is None else sum(key in known for key in _keys(data.test))
    if data.test is not None and shared:
        warnings.warn(
            f"{data.name}: {shared} of {len(data.test)} test rows occur in the training part, too (the same features "
            "and target); if they are copies, remove them: what is known already is no test",
            stacklevel=3,
        )
    if data.guarantee is None:
        return
    known |= set() if data.validation is None else set(_keys(data.validation))
    shared = sum(key in known for key in _keys(data.guarantee))
    if shared:
        warnings.warn(
            f"{data.name}: {shared} of {len(data.guarantee)} rows set aside for a guarantee occur in the training or "
            "validation part, too (the same features and target); if they are copies, remove them: a guarantee holds "
            "for new rows that are copies as often",
            stacklevel=3,
        )


def _warn_of_row_number(rows: Table, name: str) -> None:
    values = np.sort(np.array(rows.columns[name], dtype=np.float64))  # NaN, where missing, comes last
    exact = len(values) >= ENOUGH and np.abs(values).max() < 2**53  # and whole numbers are told apart
    if exact and values[0].is_integer() and (np.diff(values) == 1).all():
        message = (
            f"{rows.source}: column {name!r} holds every whole number from {values[0]:.0f} to {values[-1]:.0f} once, "
            f"like a row number; if it is one, leave it out with drop=[{name!r}]"
        )
        warnings.warn(ArgumentWarning(message, "drop"), stacklevel=4)


def _keys(part: Part) -> list[bytes]:
    """A row each, features and target, as bytes that are equal where the row is."""
    x, y = part.tensors()
    rows = torch.cat([x.double(), y.double().reshape(len(y), -1)], 1) + 0.0  # -0 is 0
    return [row.tobytes() for row in rows.numpy()]


def undressed(text: str, decimal: str = ".") -> str | None:
    """A text as the number it is without the signs around and inside it; None if it is none even then.

    >>> [undressed(text) for text in ("$1,000.50", "12 %", "1 000", "-€5", "1,5", "A4")]
    ['1000.50', '12', '1000', '-5', '1.5', None]
    """
    match = _DRESSED.fullmatch(text)
    if match is None:
        return None
    outer, inner, digits = match.groups()
    if outer and inner:
        return None
    if _GROUPS[decimal].fullmatch(digits):
        digits = re.sub(rf"[^0-9{decimal}]", "", digits)
    elif number(digits, _OTHER[decimal]) is not None:
        digits = digits.replace(_OTHER[decimal], decimal)
    return outer + inner + digits if number(digits, decimal) is not None else None


def refuse_disguised(
    rows: Table, name: str, texts: Sequence[tuple[int, str]], count: int, otherwise: str, argument: str
) -> None:
    """An error if most values of a column would be numbers without such signs.

    Args:
        rows: the table.
        name: of the column.
        texts: (row, text) of its values that are no numbers.
        count: how many values it has, numbers among them.
        otherwise: what to say if they are meant as they are, and
        argument: which argument that is.
    """
    plain = [(row, text, undressed(text, rows.decimal)) for row, text in texts]
    found = [(row, text, bare) for row, text, bare in plain if bare is not None]
    if not found or 2 * (count - len(texts) + len(found)) <= count:
        return
    row, text, bare = found[0]
    other = _OTHER[rows.decimal]
    signs = any(number(one, other) is not None and not _GROUPS[rows.decimal].fullmatch(one) for _, one, _ in found)
    hint = f", or say decimal={other!r} if {other!r} is the decimal sign of all numbers" if signs else ""
    raise ArgumentError(
        f"{rows.place(row)}: a number that is written as text, {text!r} in {name!r} ({len(found)} of {count} values "
        f"are such); write {bare} in its place (numbers have no signs of currency, per cent or thousands){hint}, "
        f"or say {otherwise}",
        *(("decimal", argument) if hint else (argument,)),
    )
