"""Small files in the formats of the published image sets."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def idx_bytes(array: Array, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, start: str, images: Array, labels: Array, packed: bool = True) -> list[Path]:
    """MNIST's two files of one part; `start`: train or t10k."""
    paths = []
    for name, array in ("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels):
        data = idx_bytes(array)
        end = ".gz" if packed else ""
        paths.append(written(folder / f"{start}-{name}{end}", gzip.compress(data, mtime=0) if packed else data))
    return paths


def cifar_bytes(images: Array, *labels: Array) -> bytes:
    """Records: the labels, then the image (3, 32, 32)."""
    return b"".join(bytes(int(kind[i]) for kind in labels) + images[i].tobytes() for i in range(len(images)))


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return written(path, buffer.getvalue())


def write_npz(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def write_grey(folder: Path, name: str, train: int = 30, test: int = 20, side: int = 28) -> dict[str, Array]:
    """A grey set of ten classes as .npz files; images and labels by part."""
    made: dict[str, Array] = {}
    for seed, (part, count) in enumerate({"train": train, "test": test}.items()):
        made[part], made[f"{part}_labels"] = pixels(count, side, side, seed=seed), np.arange(count, dtype=np.uint8) % 10
        write_npz(folder / f"{name}_{part}.npz", images=made[part], labels=made[f"{part}_labels"])
    return made
