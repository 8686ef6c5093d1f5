"""Images in .npz files: plain arrays, lanepack, or the bytes of JPEG files; what is slow to decode is kept."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn.data.named_sets import lanepack
from bnn.data.named_sets.download import written
from bnn.data.named_sets.formats import Stack, pictures, reading, rows
from bnn.data.named_sets.sources import cache


def read_npz(paths: Sequence[Path], first: int | None = None) -> Stack:
    """Images and labels of an .npz file.

    Its images are `images` uint8 (N, H, W) or (N, H, W, C), or packed by lanepack, or `jpeg` bytes cut at `offsets`;
    `labels` (N,) and `coarse` (N,) are optional. Nothing is unpickled.
    """
    (path,) = paths
    with reading(path), zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if lanepack.is_lanepack(members):
            images = _lanepack(archive, path, first)
        elif "jpeg" in members:
            images = _jpeg(archive, first)
        elif "images" in members:
            images = _channels_first(member(archive, "images", first))
        else:
            raise ValueError(f"it holds {members}, expected 'images', or images packed as 'words' or 'jpeg'")
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


def _jpeg(archive: zipfile.ZipFile, first: int | None) -> NDArray[np.uint8]:
    offsets, data = member(archive, "offsets").tolist(), member(archive, "jpeg").tobytes()
    if offsets != sorted(offsets) or offsets[0] != 0 or offsets[-1] != len(data):
        raise ValueError("its offsets do not cut its bytes into files")
    pairs = list(itertools.pairwise(offsets))[:first]
    return pictures(data[begin:end] for begin, end in pairs)


def _lanepack(archive: zipfile.ZipFile, path: Path, first: int | None) -> NDArray[np.uint8]:
    """The images, from the cache group by group as far as they are there; what is decoded goes there."""
    light = {name: member(archive, name) for name in ("shape", "lanes")}
    sizes, key = lanepack.group_sizes(light), _key(archive)
    wanted = sum(sizes) if first is None else min(first, sum(sizes))
    groups: list[NDArray[np.uint8]] = []
    content: dict[str, NDArray[Any]] = {}
    for index in range(len(sizes)):
        if sum(sizes[:index]) >= wanted:
            break
        kept = cache() / "decoded" / f"{path.stem}-{key}-{index}.npy"
        group = _kept(kept, sizes[index])
        if group is None:
            content = content or {name: member(archive, name) for name in lanepack.MEMBERS}
            group = lanepack.decode_group(content, index)
            _keep(kept, group)
        groups.append(group[: wanted - sum(sizes[:index])])
    return np.concatenate(groups) if len(groups) > 1 else np.array(groups[0])


def _key(archive: zipfile.ZipFile) -> str:
    """Names what a file holds by the checksums in its directory, whatever its path and date."""
    entries = sorted((entry.filename, entry.CRC, entry.file_size) for entry in archive.infolist())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def _kept(path: Path, count: int) -> NDArray[np.uint8] | None:
    """A decoded group; None where there is none, or none that is whole."""
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return images if images.ndim == 4 and len(images) == count and images.dtype == np.uint8 else None


def _keep(path: Path, images: NDArray[np.uint8]) -> None:
    try:
        with written(path) as temporary, open(temporary, "xb") as file:
            np.save(file, images, allow_pickle=False)
    except OSError as error:  # a full or read-only disk costs time at the next load, no more
        warnings.warn(f"decoded images could not be kept at {path}: {error}; set BNN_CACHE to a folder", stacklevel=2)
