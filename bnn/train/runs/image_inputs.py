"""Image files, folders of them, and arrays of images as inputs of a run on images."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnn._common.text import listed
from bnn.data.array_preparation import LAYOUTS, Array, channels_first
from bnn.data.dataset import Part
from bnn.data.image_files import ENDINGS, decode, files_below, header, shown_size
from bnn.data.images import ImageScaling
from bnn.train.runs.given import Given, Inputs, loaded, source_of


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
