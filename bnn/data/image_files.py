"""Image files as arrays of bytes (upright, in one colour mode, at one size), and as inputs of a network."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bnn._common.errors import ArgumentError
from bnn._common.extras import need
from bnn._common.records import stored_fields
from bnn.data.images import ImageScaling

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
ORIENTATION = 0x0112  # the Exif tag; from 5 on, the image lies on its side
QUIET = ("thumbs.db", "desktop.ini", "__macosx")  # what systems leave behind; hidden files are, too
CONTAINER = pathlib.Path("/sys/fs/cgroup/memory.max")  # the limit of a container's memory

Path = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]


class ImageFileError(ArgumentError):
    """A file that ought to be an image and cannot be read as one."""


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image say: upright size (H, W), and whether it is stored grey."""

    size: tuple[int, int]
    grey: bool


def header(path: Path) -> Header:
    """The header of an image file; nothing is decoded."""
    with _opened(path) as image:
        width, height = image.size
        lies = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
        return Header((width, height) if lies else (height, width), image.mode in GREY_MODES)


def decode(path: Path, size: tuple[int, int], grey: bool) -> Bytes:
    """The image (C, H, W) of a file, C = 1 if `grey` and else 3.

    Turned upright as its Exif data says, on white where it is transparent, 16 bits reduced to 8; of several frames the
    first. One of another size is scaled (with antialiasing) until it covers `size` (H, W), and its centre is cut out.
    """
    height, width = size
    ops = need("PIL.ImageOps", "data")
    with _opened(path) as image:
        image.draft(None, (2 * max(size), 2 * max(size)))  # JPEG decodes large images at a fraction of their size
        _refuse_wide(image)
        image.load()
        upright = _eight_bits(ops.exif_transpose(image))
        converted = _on_white(upright).convert("L" if grey else "RGB")
        if converted.size != (width, height):
            converted = ops.fit(converted, (width, height), need("PIL.Image", "data").Resampling.BILINEAR)
        pixels = np.array(converted, dtype=np.uint8).reshape(height, width, -1)
    return pixels.transpose(2, 0, 1)


def files_below(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Images and other files of a folder and its subfolders, sorted; links to folders are not followed."""
    images: list[pathlib.Path] = []
    others: list[pathlib.Path] = []
    for root, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not is_quiet(name))
        for name in sorted(names):
            if not is_quiet(name):
                (images if is_image(name) else others).append(pathlib.Path(root, name))
    return images, others


def is_image(name: str) -> bool:
    """Whether a file's ending is one of an image."""
    return name.lower().endswith(ENDINGS)


def is_quiet(name: str) -> bool:
    """Whether a file or folder is hidden, or left behind by a system."""
    return name.startswith(".") or name.lower() in QUIET


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The image, not decoded yet; whatever goes wrong with it is an error that names the file."""
    image_file, image_module = need("PIL.ImageFile", "data"), need("PIL.Image", "data")
    lenient, image_file.LOAD_TRUNCATED_IMAGES = image_file.LOAD_TRUNCATED_IMAGES, False
    try:
        if os.path.getsize(path) == 0:
            raise ImageFileError("the file is empty")
        with image_module.open(path) as image:
            yield image
    except image_module.UnidentifiedImageError:
        raise ImageFileError(f"cannot read the image {path}: it is damaged, or no image at all") from None
    except (MemoryError, ImportError, Warning):
        raise
    except Exception as error:  # decoders raise whatever comes to hand
        raise ImageFileError(f"cannot read the image {path}: {error}") from error
    finally:
        image_file.LOAD_TRUNCATED_IMAGES = lenient


def _refuse_wide(image: Any) -> None:
    """An error for pixels of 32 bits; PNG files of 16 bits may come in that mode, too."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise ImageFileError(f"pixels of 32 bits (mode {image.mode!r}) have no fixed range; save it with 8 or 16 bits")


def _eight_bits(image: Any) -> Any:
    """An image of 16 bits per pixel as one of 8; other images as they are."""
    if not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image).astype(np.int64)
    return need("PIL.Image", "data").fromarray(((pixels + 128) // 257).clip(0, 255).astype(np.uint8))


def _on_white(image: Any) -> Any:
    """The image without transparency."""
    if image.mode not in ("RGBA", "LA", "PA", "RGBa", "La") and "transparency" not in image.info:
        return image
    rgba = image.convert("RGBA")
    white = need("PIL.Image", "data").new("RGBA", rgba.size, "white")
    return need("PIL.Image", "data").alpha_composite(white, rgba)


def memory_bytes() -> int | None:
    """The memory this process may use; None where that is unknown."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTAINER.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def check_memory(shape: Sequence[int]) -> None:
    """An error if images (N, C, H, W) of one byte per pixel and channel take more than half of the memory."""
    needed, there = math.prod(shape), memory_bytes()
    if there is not None and needed > there / 2:
        raise MemoryError(
            f"{shape[0]} images of {shape[2]} x {shape[3]} pixels take {needed / 2**30:.3g} GiB, more than half of the "
            f"{there / 2**30:.3g} GiB of memory; give a smaller size=, such as size=64"
        )


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
