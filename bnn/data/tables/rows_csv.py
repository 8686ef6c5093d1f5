"""CSV files as rows: a line of names, then one line per row; the delimiter and the decimal comma are found out."""

from __future__ import annotations

import csv
import io
import os
import pathlib
import re
from typing import Any

from bnn._common.errors import ArgumentError
from bnn._common.text import listed
from bnn.data.tables.table import Cell, Table, number

DELIMITERS = (",", ";", "\t", "|")
_WITH_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_WITH_POINT = re.compile(r"[+-]?[0-9]*[.][0-9]+(?:[eE][+-]?[0-9]+)?")

Record = tuple[int, list[str]]  # the line it starts on, its cells


def read_csv(
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str = "utf-8-sig",
) -> Table:
    """The rows of a CSV file, cells without the blanks around them.

    Args:
        path: the file; its first line names the columns.
        delimiter: between cells; None finds out which of , ; tab | it is.
        decimal: "." or ","; None is "," only in a file with ; between cells whose numbers have commas.
        encoding: of the text.

    Raises:
        ValueError: no rows, a line with too many or too few cells, names that occur twice, broken quotes.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.', ',' or None (find out), got {decimal!r}")
    path = pathlib.Path(path)
    text = _text(path, encoding)
    delimiter = _sniffed(text) if delimiter is None else delimiter
    records = _records(path.name, text, delimiter)
    if not records:
        raise ValueError(f"{path} is empty; its first line must name the columns")
    (_, header), *records = records
    while records and not any(records[-1][1]):  # what spreadsheets leave at the end
        records.pop()
    if not records:
        raise ValueError(f"{path} has a line of names and no rows below it")
    _check_widths(path.name, header, records)
    columns: dict[str, list[Cell]] = {}
    for index, name in enumerate(header):
        cells: list[Cell] = [record[index] for _, record in records]
        if name or any(cells):
            columns[name] = cells
    _check_names(path.name, header, list(columns))
    rows = Table(path.name, columns, [line for line, _ in records])
    return Table(rows.source, columns, rows.numbers, decimal=decimal or _decimal(rows, delimiter))


def _text(path: pathlib.Path, encoding: str) -> str:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a CSV file in it")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    raw = path.read_bytes()
    try:
        text = raw.decode(encoding)
    except UnicodeError as error:
        wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        likely = "utf-16" if wide else "cp1252"
        message = f"{path} is not {encoding} text ({error}); try encoding={likely!r}"
        raise ArgumentError(message, "encoding") from None
    if "\0" in text:
        message = f"{path} is not a text file, or one of two bytes per letter: try encoding='utf-16'"
        raise ArgumentError(message, "encoding")
    return text


def _reader(text: str, delimiter: str) -> Any:
    try:
        return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    except TypeError as error:
        raise ValueError(f"delimiter must be one character, got {delimiter!r} ({error})") from None


def _records(name: str, text: str, delimiter: str, most: int | None = None) -> list[Record]:
    """All lines with something on them, or the first `most`."""
    reader, records, start = _reader(text, delimiter), [], 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if len(stripped) > 1 or any(stripped):
                records.append((start, stripped))
            start = reader.line_num + 1
            if most is not None and len(records) == most:
                break
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {start}: {error}; quotes around a cell must close, and quotes inside one are doubled"
        ) from None
    return records


def _sniffed(text: str) -> str:
    """The delimiter by which most of the first lines have as many cells as the line of names, and that is the most."""
    scores = {}
    for delimiter in DELIMITERS:
        try:
            records = _records("", text, delimiter, most=30)
        except ValueError:
            continue
        width = len(records[0][1]) if records else 1
        agree = sum(len(cells) == width for _, cells in records)
        if width > 1:
            scores[delimiter] = (agree / len(records), width)
    return max(scores, key=lambda delimiter: scores[delimiter], default=",")


def _check_widths(source: str, header: list[str], records: list[Record]) -> None:
    for line, cells in records:
        if len(cells) != len(header):
            raise ArgumentError(
                f"{source}, line {line} has {len(cells)} cells, the line of names has {len(header)}; a cell with the "
                "delimiter in it needs quotes around it, and delimiter= says what stands between cells",
                "delimiter",
            )


def _check_names(source: str, header: list[str], used: list[str]) -> None:
    if all(number(name) is not None for name in header if name):
        raise ValueError(
            f"{source}: the first line must name the columns, it holds numbers: {listed(header)}; add a line of names"
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ValueError(f"{source}: two columns have the same name: {listed(map(repr, twice))}; rename one")
    if header.count("") > 1 and "" in used:
        raise ValueError(f"{source}: several columns have no name; name them in the first line")


def _decimal(rows: Table, delimiter: str) -> str:
    """A comma only if ; stands between cells and some number has one; both signs in one file are an error."""
    if delimiter != ";":
        return "."
    comma, point = _first(rows, _WITH_COMMA), _first(rows, _WITH_POINT)
    if comma and point:
        raise ArgumentError(f"a point in {point} and a comma in {comma}: say decimal='.' or decimal=','", "decimal")
    return "," if comma else "."


def _first(rows: Table, pattern: re.Pattern[str]) -> str | None:
    for name, cells in rows.columns.items():
        for row, cell in enumerate(cells):
            if isinstance(cell, str) and pattern.fullmatch(cell):
                return f"{rows.place(row)}, column {name!r} ({cell!r})"
    return None
