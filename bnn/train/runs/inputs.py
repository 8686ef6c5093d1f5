"""New inputs of a finished run, read and prepared as those it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bnn._common.errors import OptionError, message_of
from bnn._common.text import listed
from bnn.data.array_preparation import ArrayImages, ScaledInputs
from bnn.data.dataset import Part
from bnn.data.image_files import FolderPreparation
from bnn.data.images import ImageScaling
from bnn.data.tables.columns import category_name
from bnn.data.tables.preparation import TablePreparation
from bnn.train.runs.given import Given, Inputs, given, loaded, source_of
from bnn.train.runs.image_inputs import ImageReader


def read_inputs(preparation: Any, shape: tuple[int, ...], rows: Any, keep: Iterable[str] = ()) -> Inputs:
    """The inputs in `rows`, one after the other.

    Args:
        preparation: that of the run; None: its inputs are numbers as they are.
        shape: of one prepared input.
        rows: as for `Run.predict`.
        keep: columns of tables to carry along.

    Raises:
        ValueError, TypeError, OSError: inputs are missing, damaged, or of a kind that does not fit; they are named.
    """
    preparation = ScaledInputs.none(shape) if preparation is None else preparation
    keep = [keep] if isinstance(keep, str) else list(keep)
    if isinstance(rows, Part):
        return _of_part(rows, shape, keep)
    things = given(rows)
    if isinstance(preparation, TablePreparation):
        return read_tables(preparation, things, keep)
    _refuse_kept(keep)
    if isinstance(preparation, ScaledInputs):
        return read_arrays(preparation, things)
    reader = image_reader(preparation, shape)
    return read_others(preparation, things) if reader is None else reader.read(things)


def read_tables(preparation: TablePreparation, things: Sequence[Given], keep: Iterable[str] = ()) -> Inputs:
    """The rows of all tables, in their order, and the columns to `keep`."""
    columns = listed((repr(column.name) for column in preparation.columns), 20).replace("; ", ", ")
    takes = f"this run was trained on a table with the columns {columns}: give a CSV file"
    for one in things:
        if one.kind not in ("table", "other"):
            raise one.refused(takes if one.path else f"{takes}, a list of dicts, a dict of columns or a DataFrame")
    names: list[str] = []
    encoded = []
    kept: dict[str, list[str]] = {name: [] for name in keep}
    for one in things:
        rows = preparation.reading.rows(one.value)
        rows.need(kept)
        encoded.append(preparation.encode(rows))
        names += one.names(len(things) > 1, rows.word, rows.numbers)
        for name, cells in kept.items():
            cells += map(category_name, rows.columns[name])
    return Inputs(names, Part(torch.cat(encoded)), kept, source_of(things))


def read_arrays(preparation: ScaledInputs, things: Sequence[Given]) -> Inputs:
    """The rows of all arrays, in their order."""
    shape = ", ".join(map(str, preparation.shape))
    takes = f"this run was trained on arrays of numbers of shape (N, {shape}): give "
    for one in things:
        if one.kind != "array":
            raise one.refused(takes + ("a .npy or .npz file" if one.path else "an array, or a .npy or .npz file"))
    return _prepared(things, lambda one: preparation(loaded(one)))


def read_others(preparation: Any, things: Sequence[Given]) -> Inputs:
    """The inputs of a source that nothing special is known about: its preparation takes what is given."""
    return _prepared(things, lambda one: preparation(one.value))


def _prepared(things: Sequence[Given], prepare: Callable[[Given], Tensor]) -> Inputs:
    """The inputs of all things, in their order; an error names the file."""
    names: list[str] = []
    prepared = []
    for one in things:
        try:
            prepared.append(prepare(one))
        except (TypeError, ValueError, LookupError) as error:
            if not one.path or str(one.value) in str(error):
                raise
            raise ValueError(f"{one.value}: {message_of(error)}") from error
        names += one.names(len(things) > 1, "row", range(len(prepared[-1])))
    return Inputs(names, Part(torch.cat(prepared)), source=source_of(things))


def image_reader(preparation: object, shape: tuple[int, ...]) -> ImageReader | None:
    """What reads images (C, H, W) for a network that was trained with this preparation; None if it is not of images."""
    if isinstance(preparation, FolderPreparation):
        return ImageReader(preparation.scaling, (preparation.channels, *preparation.size), preparation.resized)
    if isinstance(preparation, ArrayImages):
        return ImageReader(preparation.scaling, preparation.shape, layout=preparation.layout)
    if isinstance(preparation, ImageScaling):
        return ImageReader(preparation, shape)
    return None


def _of_part(part: Part, shape: tuple[int, ...], keep: list[str]) -> Inputs:
    """A part of a data set, which brings its own preparation along."""
    _refuse_kept(keep)
    if len(part) == 0:
        raise ValueError("there is nothing to predict: the part is empty")
    found = tuple(part.inputs(slice(0, 1)).shape[1:])
    if found != shape:
        raise ValueError(f"this run takes inputs of shape {shape}, those of the part have {found}")
    return Inputs([f"row {i}" for i in range(len(part))], part, source="the part")


def _refuse_kept(keep: list[str]) -> None:
    if keep:
        raise OptionError("{keep} names a column of a table, and these inputs are none", keep=keep[0])
