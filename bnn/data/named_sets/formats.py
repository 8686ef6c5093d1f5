"""Files of images as they are published: IDX, CIFAR's binary records, SVHN's .mat, a zip of JPEGs; and plain .npz.

Every reader takes paths and how many images are wanted (None: all), and gives a `Stack`. Nothing is unpickled.
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
DIGITS_FILE = Path(__file__).with_name("digits.npz")
DIGITS_TRAINING = 1297  # the first ones; the other 500 are for testing
DIGITS_WHITE = 16


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


def read_npz(paths: Sequence[Path], first: int | None = None) -> Stack:
    """Images and labels of an .npz file.

    Its images are `images` uint8 (N, H, W) or (N, H, W, C); `labels` (N,) and `coarse` (N,) are optional. Nothing is
    unpickled.
    """
    (path,) = paths
    with reading(path), zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if "images" not in members:
            raise ValueError(f"it holds {members}, expected 'images', and 'labels' where there are any")
        images = _channels_first(member(archive, "images", first))
        labels, coarse = (member(archive, one, first) if one in members else None for one in ("labels", "coarse"))
    return Stack(images, labels, coarse)


def member(archive: zipfile.ZipFile, name: str, first: int | None = None) -> NDArray[Any]:
    """One array of an .npz file, or only its `first` rows, unpacking no more than these."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, expected plain numbers; they are never unpickled")
        if fortran or not shape:  # column by column: the first rows are all over it
            whole = rows(file, 1, tuple(shape[::-1]), dtype, whole=True)[0].T
            return whole[:first] if shape else whole
        count = shape[0] if first is None else min(first, shape[0])
        return rows(file, count, shape[1:], dtype, whole=count == shape[0])


def _channels_first(images: NDArray[Any]) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise ValueError(f"images have shape {images.shape}, expected (N, H, W) or (N, H, W, C) with C = 1 or 3")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def read_digits(part: str, first: int | None = None) -> Stack:
    """1,797 handwritten digits of 8 x 8 pixels; the first 1,297 are for training, the last 500 for testing.

    They are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
    Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0, in their order: writers come one after the other, so
    that most of the test digits are by hands that training never saw. Their 17 shades, 0 to 16, are spread over
    0 to 255.

    >>> read_digits("test").images.shape
    (500, 1, 8, 8)
    """
    chosen = slice(None, DIGITS_TRAINING) if part == "train" else slice(DIGITS_TRAINING, None)
    with reading(DIGITS_FILE), np.load(DIGITS_FILE, allow_pickle=False) as file:
        images, labels = file["images"][chosen][:first], file["labels"][chosen][:first]
    spread = (images.astype(np.uint16) * 255 + DIGITS_WHITE // 2) // DIGITS_WHITE  # rounded
    return Stack(spread.astype(np.uint8)[:, None], labels)
