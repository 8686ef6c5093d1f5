"""Image files as inputs of a network, read as those it was trained on."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bnn._common.records import stored_fields
from bnn.data.image_folders.image_files import decode, files_below, header
from bnn.data.scaling import ImageScaling

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class FolderPreparation:
    """Turns image files into inputs (N, C, H, W) of a network.

    Args:
        scaling: of pixels, learned on the training part.
        size: (H, W) of every image; others are scaled and cut to it.
        grey: one channel instead of three.
        resized: whether training images were scaled, too; where not, scaling a new one is a warning.
    """

    kind: ClassVar[str] = "folder"

    scaling: ImageScaling
    size: tuple[int, int]
    grey: bool
    resized: bool = False

    @property
    def channels(self) -> int:
        """C."""
        return 1 if self.grey else 3

    def files(self, raw: Path | Iterable[Path]) -> list[pathlib.Path]:
        """The image files that `raw` names, in the order of the inputs: those of a folder (sorted), one, or a list."""
        if not isinstance(raw, str | os.PathLike):
            files = [pathlib.Path(self._path(path)) for path in (raw if isinstance(raw, Iterable) else [raw])]
        else:
            files = files_below(pathlib.Path(raw))[0] if os.path.isdir(raw) else [pathlib.Path(raw)]
        if not files:
            raise ValueError(f"there are no images in {raw!r}")
        return files

    def __call__(self, raw: Tensor | npt.NDArray[np.uint8] | Path | Iterable[Path]) -> Tensor:
        """Inputs (N, C, H, W) of image files, of all images in a folder, or of uint8 images (N, C, H, W)."""
        shape = (self.channels, *self.size)
        if isinstance(raw, np.ndarray):
            raw = torch.from_numpy(np.array(raw, order="C"))
        if not isinstance(raw, Tensor):
            files = self.files(raw)
            raw = torch.zeros(len(files), *shape, dtype=torch.uint8)
            for image, path in zip(raw, files, strict=True):
                image.copy_(torch.from_numpy(self._read(path)))
        if raw.dtype != torch.uint8 or raw.shape[1:] != shape:
            wanted = ", ".join(map(str, shape))
            hint = "; image[None] makes a batch of one" if raw.shape == shape else ""
            raise ValueError(f"expected uint8 images (N, {wanted}), got {raw.dtype} {tuple(raw.shape)}{hint}")
        return self.scaling(raw)

    def _path(self, path: Any) -> Path:
        if isinstance(path, str | os.PathLike):
            return path
        height, width = self.size
        pixels = f"np.asarray(image.convert({'L' if self.grey else 'RGB'!r}).resize(({width}, {height})))"
        turned = "[None, None]" if self.grey else ".transpose(2, 0, 1)[None]"
        raise TypeError(
            "expected the path of an image or of a folder, a list of paths, or uint8 images "
            f"(N, {self.channels}, {height}, {width}); got a {type(path).__name__}; for an image of pillow that is no "
            f"file, pass {pixels}{turned}"
        )

    def _read(self, path: pathlib.Path) -> Any:
        found = header(path).size
        if found != self.size and not self.resized:
            warnings.warn(
                f"{path} is {shown_size(found)} and is scaled to {shown_size(self.size)}, as in training", stacklevel=4
            )
        return decode(path, self.size, self.grey)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": self.kind,
            "scaling": self.scaling.to_dict(),
            "size": list(self.size),
            "grey": self.grey,
            "resized": self.resized,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> FolderPreparation:
        """As `to_dict` stored it."""
        read = stored_fields(stored, "preparation of images", scaling=dict, size=list, grey=bool, resized=bool)
        return cls(ImageScaling.from_dict(read["scaling"]), checked_size(read["size"]), read["grey"], read["resized"])


def checked_size(size: Any) -> tuple[int, int]:
    """(H, W) of a pair, or of the side of a square.

    >>> checked_size(32), checked_size((24, 32))
    ((32, 32), (24, 32))
    """
    pair = (size, size) if isinstance(size, int) else size
    fine = isinstance(pair, tuple | list) and len(pair) == 2
    if not fine or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in pair):
        raise ValueError(f"size must be (H, W) in pixels, or one number for a square; got {size!r}")
    return pair[0], pair[1]


def shown_size(size: tuple[int, int]) -> str:
    """As "H x W"."""
    return f"{size[0]} x {size[1]}"
