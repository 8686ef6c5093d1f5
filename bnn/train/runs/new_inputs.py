"""New inputs of a finished run (tables, arrays, images), read and prepared as those it was trained on."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn._common.errors import OptionError, message_of
from bnn._common.text import listed
from bnn.data.array_preparation import LAYOUTS, Array, ArrayImages, ScaledInputs, channels_first
from bnn.data.dataset import Part
from bnn.data.image_files import ENDINGS, FolderPreparation, decode, files_below, header, shown_size
from bnn.data.images import ImageScaling
from bnn.data.tables.columns import category_name
from bnn.data.tables.preparation import TablePreparation
from bnn.train.runs.given import Given, Inputs, given, loaded, source_of


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


@dataclass(frozen=True)
class ImageReader:
    """Reads images as a run takes them.

    Args:
        scaling: of pixels.
        shape: (C, H, W) of every image; files of another size are scaled and cut to it.
        resized: whether images were scaled in training, too; where not, doing so is worth a note.
        layout: of arrays, where their shape fits several.
    """

    scaling: ImageScaling
    shape: tuple[int, ...]
    resized: bool = False
    layout: str = "NCHW"

    @property
    def takes(self) -> str:
        """What to give, as a sentence."""
        colour = "grey " if self.shape[0] == 1 else ""
        size, files = shown_size(self.size), f"image files ({' '.join(ENDINGS)}), folders of them, or "
        return (
            f"this run was trained on {colour}images of {size} pixels: give {files if self.files else ''}"
            f".npy or .npz files of uint8 images {self._shapes()}"
        )

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.shape[1], self.shape[2]

    @property
    def files(self) -> bool:
        """Whether image files have as many channels as this run takes."""
        return self.shape[0] in (1, 3)

    def read(self, things: Sequence[Given]) -> Inputs:
        """The images of all files, folders and arrays, in their order."""
        for one in things:
            if one.kind == "table" or (one.kind != "array" and not self.files):
                raise one.refused(self.takes)
        names: list[str] = []
        found: list[Tensor] = []
        images: list[pathlib.Path] = []  # those read from files, for the note
        for one in things:
            if one.kind == "array":
                found.append(self._array(one))
                names += one.names(len(things) > 1, "row", range(len(found[-1])))
                continue
            files = self._below(one.value) if one.kind == "folder" else [pathlib.Path(one.value)]
            found.append(self._decoded(files))
            names += map(str, files) if one.kind == "folder" else [one.value]
            images += files
        self._note_sizes(images)
        return Inputs(names, Part(torch.cat(found), None, self.scaling), source=source_of(things))

    def _below(self, folder: str) -> list[pathlib.Path]:
        images, others = files_below(pathlib.Path(folder))
        if not images:
            raise ValueError(f"there are no images in {folder}; {self.takes}")
        if others:
            shown = listed(map(str, others), 2)
            warnings.warn(f"left out in {folder}, because they are no images: {shown}", stacklevel=5)
        return images

    def _decoded(self, files: Sequence[pathlib.Path]) -> Tensor:
        images = torch.zeros(len(files), *self.shape, dtype=torch.uint8)
        for image, path in zip(images, files, strict=True):
            image.copy_(torch.from_numpy(decode(path, self.size, grey=self.shape[0] == 1)))
        return images

    def _note_sizes(self, files: Sequence[pathlib.Path]) -> None:
        if self.resized:
            return
        sizes = {path: header(path).size for path in files}
        other = [path for path in files if sizes[path] != self.size]
        if other:
            which = f"{other[0]} is" if len(files) == 1 else f"{len(other)} of {len(files)} images are"
            example = "" if len(files) == 1 else f", as {other[0]} ({shown_size(sizes[other[0]])})"
            warnings.warn(
                f"{which} not {shown_size(self.size)} pixels, as in training, and scaled to that{example}", stacklevel=5
            )

    def _array(self, one: Given) -> Tensor:
        array = loaded(one)
        for layout in dict.fromkeys([self.layout, *LAYOUTS]):
            if array.dtype == np.uint8 and array.shape[1:] == self._one(layout):
                return channels_first(array, layout)
        what = one.value if one.path else "the array"
        raise ValueError(f"{what} must hold uint8 images, 0 to 255, {self._shapes()}; got {_shown(array)}")

    def _one(self, layout: str) -> tuple[int, ...] | None:
        """The shape of one image in an array of that layout; None where it has no room for the channels."""
        channels, height, width = self.shape
        if layout == "NHW":
            return (height, width) if channels == 1 else None
        return self.shape if layout == "NCHW" else (height, width, channels)

    def _shapes(self) -> str:
        shapes = [one for layout in LAYOUTS if (one := self._one(layout)) is not None]
        return " or ".join(f"(N, {', '.join(map(str, one))})" for one in shapes)


def _shown(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"
