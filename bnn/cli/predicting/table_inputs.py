"""Rows of CSV files as inputs of a run on a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from bnn._common.text import listed
from bnn.cli.predicting.named_inputs import Inputs, kind_of, refuse, row_names
from bnn.data.dataset import Part
from bnn.data.tables.columns import category_name
from bnn.data.tables.preparation import TablePreparation


def read_tables(preparation: TablePreparation, paths: Sequence[str], keep: Iterable[str] = ()) -> Inputs:
    """The rows of all files, in their order, and the columns to `keep`."""
    columns = listed((repr(column.name) for column in preparation.columns), 20).replace("; ", ", ")
    takes = f"this run was trained on a table with the columns {columns}: give a CSV file"
    for path in paths:
        if (kind := kind_of(path)) not in ("table", "other"):
            raise refuse(path, kind, takes)
    names: list[str] = []
    encoded = []
    kept: dict[str, list[str]] = {name: [] for name in keep}
    for path in paths:
        rows = preparation.reading.rows(path)
        rows.need(kept)
        encoded.append(preparation.encode(rows))
        names += row_names(path, len(paths) > 1, rows.word, rows.numbers)
        for name, cells in kept.items():
            cells += map(category_name, rows.columns[name])
    return Inputs(names, Part(torch.cat(encoded)), kept)
