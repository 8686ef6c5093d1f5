"""New inputs of a finished run, from files of whatever kind it was trained on; each with a name for its answer."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bnn._common.text import listed, nearest
from bnn.cli.console import say
from bnn.cli.mistakes import Mistake, described
from bnn.data.array_sets.array_files import Array, array_of
from bnn.data.array_sets.array_preparation import LAYOUTS, ArrayImages, ScaledInputs, channels_first
from bnn.data.dataset import Part
from bnn.data.image_folders.folder_preparation import FolderPreparation, shown_size
from bnn.data.image_folders.image_files import ENDINGS, decode, files_below, header, is_image
from bnn.data.scaling import ImageScaling
from bnn.data.tables.columns import category_name
from bnn.data.tables.preparation import TablePreparation
from bnn.train.outcome import Outcome

NAMES = ("x", "x_test")  # of the inputs in an .npz file
Kind = Literal["folder", "image", "array", "table", "other"]
KINDS: dict[Kind, str] = {
    "folder": ", a folder",
    "image": ", an image",
    "array": ", a file of arrays",
    "table": ", a table",
    "other": "",
}
ARRAYS, TABLES = (".npy", ".npz"), (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Inputs:
    """N inputs of a network.

    Args:
        names: of the inputs (N,): files as given, or lines and rows.
        part: the inputs, with what prepares them.
        kept: columns of the tables they came from, {name: N cells}.
    """

    names: Sequence[str]
    part: Part
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)


def read_inputs(run: Outcome, paths: Sequence[str], keep: Iterable[str] = ()) -> Inputs:
    """The inputs in `paths`, one after the other, read and prepared as those the run was trained on.

    Args:
        paths: images and folders of images, CSV files, .npy and .npz files, or whatever else the run's source reads.
        keep: columns of CSV files to carry along.

    Raises:
        Mistake, ValueError, OSError: a file is missing, damaged, or of a kind that does not fit; it is named.
    """
    if not paths:
        raise Mistake("there is nothing to predict: name at least one file or folder")
    preparation = ScaledInputs.none(run.in_shape) if run.preparation is None else run.preparation
    keep = list(keep)
    if isinstance(preparation, TablePreparation):
        return read_tables(preparation, paths, keep)
    if keep:
        raise Mistake(f"--keep {keep[0]} names a column of a CSV file, and this run was not trained on a table")
    match preparation:
        case ScaledInputs():
            return read_arrays(preparation, paths)
        case FolderPreparation():
            shape = (preparation.channels, *preparation.size)
            return ImageReader(preparation.scaling, shape, preparation.resized).read(paths)
        case ArrayImages():
            return ImageReader(preparation.scaling, preparation.shape, layout=preparation.layout).read(paths)
        case ImageScaling():
            return ImageReader(preparation, run.in_shape).read(paths)
    return read_files(preparation, paths)


def read_files(preparation: Any, paths: Sequence[str]) -> Inputs:
    """The inputs of all files of a source that nothing special is known about: its preparation takes their paths."""
    for path in paths:
        kind_of(path)
    names: list[str] = []
    prepared = []
    for path in paths:
        with naming(path):
            prepared.append(preparation(path))
        names += row_names(path, len(paths) > 1, "row", range(len(prepared[-1])))
    return Inputs(names, Part(torch.cat(prepared)))


def kind_of(path: str) -> Kind:
    """What a path seems to be, by its ending; a path that leads nowhere is a mistake.

    >>> kind_of("nowhere/rows.csv")
    Traceback (most recent call last):
    bnn.cli.mistakes.Mistake: there is no file nowhere/rows.csv
    """
    if not os.path.exists(path):
        parent, name = os.path.split(os.path.normpath(path))
        beside = os.listdir(parent or os.curdir) if os.path.isdir(parent or os.curdir) else []
        raise Mistake(f"there is no file {path or repr(path)}{nearest(name, beside)}")
    if os.path.isdir(path):
        return "folder"
    if is_image(path):
        return "image"
    ending = os.path.splitext(path)[1].lower()
    return "array" if ending in ARRAYS else "table" if ending in TABLES else "other"


def refuse(path: str, kind: Kind, takes: str) -> Mistake:
    """The mistake of giving a run what it does not take."""
    return Mistake(f"{takes}; got {path}{KINDS[kind]}")


def row_names(path: str, several: bool, word: str, numbers: Sequence[int]) -> list[str]:
    """A name for each row of a file: "line 7"; with the file's name before it where there are several files.

    >>> row_names("a.csv", True, "line", [2, 3])
    ['a.csv, line 2', 'a.csv, line 3']
    """
    before = f"{path}, " if several else ""
    return [f"{before}{word} {number}" for number in numbers]


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


def read_arrays(preparation: ScaledInputs, paths: Sequence[str]) -> Inputs:
    """The rows of all files, in their order."""
    shape = ", ".join(map(str, preparation.shape))
    takes = f"this run was trained on arrays of numbers of shape (N, {shape}): give a .npy or .npz file"
    for path in paths:
        if (kind := kind_of(path)) != "array":
            raise refuse(path, kind, takes)
    names: list[str] = []
    prepared = []
    for path in paths:
        array = loaded(path)
        with naming(path):
            prepared.append(preparation(array))
        names += row_names(path, len(paths) > 1, "row", range(len(array)))
    return Inputs(names, Part(torch.cat(prepared)))


def loaded(path: str) -> Array:
    """The array of inputs in a file, of at least one."""
    array = array_of(path, NAMES)
    if array.ndim == 0 or len(array) == 0:
        raise Mistake(f"{path} holds no input: its array has the shape {array.shape}")
    return array


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors inside name the file."""
    try:
        yield
    except (TypeError, ValueError, LookupError) as error:
        raise Mistake(f"{path}: {described(error)}") from error


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

    def read(self, paths: Sequence[str]) -> Inputs:
        """The images of all files and folders, in their order."""
        kinds = [kind_of(path) for path in paths]
        for path, kind in zip(paths, kinds, strict=True):
            if kind == "table" or (kind != "array" and not self.files):
                raise refuse(path, kind, self.takes)
        names: list[str] = []
        found: list[Tensor] = []
        images: list[pathlib.Path] = []  # those read from files, for the note
        for path, kind in zip(paths, kinds, strict=True):
            if kind == "array":
                found.append(self._array(path))
                names += row_names(path, len(paths) > 1, "row", range(len(found[-1])))
                continue
            files = self._below(path) if kind == "folder" else [pathlib.Path(path)]
            found.append(self._decoded(files))
            names += map(str, files) if kind == "folder" else [path]
            images += files
        self._note_sizes(images)
        return Inputs(names, Part(torch.cat(found), None, self.scaling))

    def _below(self, folder: str) -> list[pathlib.Path]:
        images, others = files_below(pathlib.Path(folder))
        if not images:
            raise Mistake(f"there are no images in {folder}; {self.takes}")
        if others:
            say(f"note: left out in {folder}, because they are no images: {listed(map(str, others), 2)}")
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
            say(f"note: {which} not {shown_size(self.size)} pixels, as in training, and scaled to that{example}")

    def _array(self, path: str) -> Tensor:
        array = loaded(path)
        for layout in dict.fromkeys([self.layout, *LAYOUTS]):
            if array.dtype == np.uint8 and array.shape[1:] == self._one(layout):
                return channels_first(array, layout)
        raise Mistake(f"{path} must hold uint8 images, 0 to 255, {self._shapes()}; got {_shown(array)}")

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
