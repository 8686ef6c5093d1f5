"""Files of images as they are published: IDX, CIFAR's binary records, SVHN's .mat, .npz, a zip of JPEGs; no pickle.

Every reader takes paths and how many images are wanted (None: all), and gives a `Stack`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bnn._common.extras import need

BROKEN = (EOFError, OSError, KeyError, ValueError, TypeError, IndexError, NotImplementedError, struct.error)
BROKEN_PACKING = (zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
CIFAR_PIXELS = 3 * 32 * 32


class Readable(Protocol):
    """An open file of bytes, packed or not."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; fewer only at the end."""


class Stack(NamedTuple):
    """Images uint8 (N, C, H, W) and their labels (N,), where there are any; `coarse`: CIFAR-100's 20 groups."""

    images: NDArray[np.uint8]
    labels: NDArray[Any] | None = None
    coarse: NDArray[Any] | None = None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into a ValueError that names it; a file that cannot be opened stays that."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (*BROKEN, *BROKEN_PACKING) as error:
        raise ValueError(f"{path} is damaged or not what its name says: {error}; get the file again") from error


def check(stack: Stack, path: Path, classes: int, groups: int = 0) -> None:
    """Raises ValueError, with the name of the file, unless images and labels fit together and labels fit the set."""
    images = stack.images
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) == 0:
        raise ValueError(f"{path}: expected images uint8 (N, C, H, W), got {images.dtype} {images.shape}")
    for name, labels, bound in ("labels", stack.labels, classes), ("coarse labels", stack.coarse, groups):
        if labels is None or bound == 0:
            continue
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            what = f"{labels.dtype} {labels.shape}"
            raise ValueError(f"{path}: expected one whole-number label per image, {len(images)}; its {name} are {what}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= bound:
            raise ValueError(f"{path}: {name} run from {low} to {high}, expected 0 to {bound - 1}")


def read_idx(paths: Sequence[Path], first: int | None = None) -> Stack:
    """MNIST's format: images (N, H, W) and labels (N,), each in a file of its own, gzipped or not."""
    images, labels = (_idx(path, dimensions, first) for path, dimensions in zip(paths, (3, 1), strict=True))
    return Stack(images[:, None], labels)


def _idx(path: Path, dimensions: int, first: int | None) -> NDArray[np.uint8]:
    with reading(path), _opened(path) as file:
        magic = file.read(4)
        if magic != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it begins with {magic!r}, expected an IDX file of bytes with {dimensions} dimensions")
        count, *shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        wanted = count if first is None else min(first, count)
        return rows(file, wanted, tuple(shape), np.dtype(np.uint8), whole=wanted == count)


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def rows(file: Readable, count: int, shape: tuple[int, ...], dtype: np.dtype[Any], whole: bool) -> NDArray[Any]:
    """An array (count, *shape) from the bytes that follow; `whole`: nothing may come after it."""
    size = count * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"it ends after {len(data):,} bytes of data, expected {size:,}")
    if whole and file.read(1):  # reading to the very end also verifies the checksum of a packed file
        raise ValueError(f"more than the {size:,} bytes of data that it announces")
    return np.frombuffer(bytearray(data), dtype).reshape(count, *shape)


def read_cifar(paths: Sequence[Path], first: int | None = None, members: Sequence[str] = (), labels: int = 1) -> Stack:
    """CIFAR's binary version: records of `labels` bytes (the last one is fine) and 3 x 32 x 32 pixels.

    Args:
        paths: the .bin files in order, or one .tar.gz that holds them.
        members: their names in the .tar.gz, in order.
    """
    record, records, left = labels + CIFAR_PIXELS, [], first
    for path, data in _binaries(paths, members, first if first is None else first * record):
        if len(data) % record or not data:
            raise ValueError(f"{path} is damaged: {len(data):,} bytes, expected a multiple of {record}; get it again")
        records.append(np.frombuffer(data, np.uint8).reshape(-1, record)[:left])
        left = None if left is None else left - len(records[-1])
        if left == 0:
            break
    table = np.concatenate(records)
    images = np.ascontiguousarray(table[:, labels:]).reshape(-1, 3, 32, 32)
    return Stack(images, table[:, labels - 1].copy(), table[:, 0].copy() if labels == 2 else None)


def _binaries(paths: Sequence[Path], members: Sequence[str], enough: int | None) -> Iterator[tuple[Path, bytes]]:
    """The contents of the .bin files, in order; of a .tar.gz only as far as `enough` bytes."""
    if not paths[0].name.endswith(".tar.gz"):
        for path in paths:
            yield path, path.read_bytes()
        return
    found: dict[str, bytes] = {}
    with reading(paths[0]), tarfile.open(paths[0], "r:gz") as archive:
        for entry in archive:
            name = entry.name.rpartition("/")[2]
            file = archive.extractfile(entry) if name in members else None  # None: a folder, or a link to nothing
            if file is not None:
                found[name] = file.read()
            if len(found) == len(members) or _runs_to(found, members, enough):
                break
        else:
            raise ValueError(f"it has no {', '.join(name for name in members if name not in found)}")
    yield from ((paths[0], found[name]) for name in members if name in found)


def _runs_to(found: dict[str, bytes], members: Sequence[str], enough: int | None) -> bool:
    """Whether the members at hand, from the first on and without a gap, hold `enough` bytes."""
    total = 0
    for name in members:
        if name not in found:
            return False
        total += len(found[name])
        if enough is not None and total >= enough:
            return True
    return False


def read_svhn(paths: Sequence[Path], first: int | None = None) -> Stack:
    """SVHN's cropped digits, .mat: X (32, 32, 3, N) and y (N, 1), where the digit 0 has the label 10."""
    matlab = need("scipy.io", extra="data")
    with reading(paths[0]):
        content = matlab.loadmat(paths[0], variable_names=["X", "y"])
        images, labels = content["X"], content["y"].reshape(-1)
        if images.ndim != 4 or labels.dtype.kind not in "iu":
            raise ValueError(f"X has shape {images.shape} and y is {labels.dtype}")
        if images.shape[3] != len(labels) or (len(labels) and not 1 <= labels.min() <= labels.max() <= 10):
            raise ValueError(f"expected {images.shape[3]} labels from 1 to 10 in y")
    return Stack(np.ascontiguousarray(images[..., :first].transpose(3, 2, 0, 1)), labels[:first].astype(np.int64) % 10)


def read_zip(paths: Sequence[Path], first: int | None = None, pattern: str = "{}") -> Stack:
    """Images of one size from a zip: the members pattern.format(0), pattern.format(1), ... without labels."""
    with reading(paths[0]), zipfile.ZipFile(paths[0]) as archive:
        names, count = set(archive.namelist()), 0
        while pattern.format(count) in names and count != first:
            count += 1
        if count == 0:
            raise ValueError(f"it has no {pattern.format(0)}")
        return Stack(pictures(archive.read(pattern.format(index)) for index in range(count)))


def pictures(files: Iterator[bytes]) -> NDArray[np.uint8]:
    """Images (N, 3, H, W) of one size from the contents of JPEG or PNG files."""
    pillow = need("PIL.Image", extra="data")
    loaded = [np.asarray(pillow.open(io.BytesIO(data)).convert("RGB")) for data in files]
    return np.ascontiguousarray(np.stack(loaded).transpose(0, 3, 1, 2))
