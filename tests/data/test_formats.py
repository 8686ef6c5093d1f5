"""Published formats: small files of each kind, whole, cut short, and with wrong contents."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from made_sets import cifar_bytes, idx_bytes, pixels, write_idx, write_npz, write_tar, written
from numpy.testing import assert_array_equal
from PIL import Image

from bnn.data.named_sets.formats import Stack, check, read_cifar, read_idx, read_npz, read_svhn, read_zip

LABELS = np.array([3, 0, 9, 1], np.uint8)


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # names of tests hold these bytes, and must not change by the second


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("first", [None, 3, 99])
def test_idx(tmp_path: Path, packed: bool, first: int | None) -> None:
    images = pixels(4, 5, 6)
    stack = read_idx(write_idx(tmp_path, "train", images, LABELS, packed), first)
    assert_array_equal(stack.images, images[:first, None])
    assert stack.labels is not None
    assert_array_equal(stack.labels, LABELS[:first])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (packed(idx_bytes(pixels(4, 5, 6)))[:-20], "images-idx3.*damaged"),
        (packed(idx_bytes(pixels(4, 5, 6))[:-1]), "119 bytes of data, expected 120"),
        (packed(idx_bytes(pixels(4, 5, 6)) + b"x"), "more than the 120"),
        (packed(idx_bytes(pixels(4, 5, 6), kind=13)), "expected an IDX file of bytes with 3 dimensions"),
        (packed(idx_bytes(LABELS)), "expected an IDX file of bytes with 3 dimensions"),
        (packed(b"\0\0\x08\x03\0"), "images-idx3.*damaged"),
        (b"<html>not found</html>", "images-idx3.*damaged"),
        (b"", "images-idx3.*damaged"),
    ],
)
def test_damaged_idx(tmp_path: Path, data: bytes, message: str) -> None:
    paths = write_idx(tmp_path, "train", pixels(4, 5, 6), LABELS)
    paths[0].write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_idx(paths)


def test_a_wrong_checksum_in_gzip_is_damage(tmp_path: Path) -> None:
    paths = write_idx(tmp_path, "train", pixels(4, 5, 6), LABELS)
    data = bytearray(paths[0].read_bytes())
    data[-8] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged.*CRC"):
        read_idx(paths)


def cifar10_batches(per_batch: int = 2) -> tuple[dict[str, bytes], Any, Any]:
    images, labels = pixels(5 * per_batch, 3, 32, 32), np.arange(5 * per_batch) % 10
    cut = [slice(i * per_batch, (i + 1) * per_batch) for i in range(5)]
    batches = {f"data_batch_{i + 1}.bin": cifar_bytes(images[part], labels[part]) for i, part in enumerate(cut)}
    return batches, images, labels


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("first", [None, 3])
def test_cifar10(tmp_path: Path, archived: bool, first: int | None) -> None:
    batches, images, labels = cifar10_batches()
    files = {f"cifar-10-batches-bin/{name}": data for name, data in reversed(batches.items())}  # in any order
    if archived:
        paths = [write_tar(tmp_path / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/readme.html": b"", **files})]
    else:
        paths = [written(tmp_path / name, data) for name, data in batches.items()]
    stack = read_cifar(paths, first, members=tuple(batches))
    assert_array_equal(stack.images, images[:first])
    assert stack.labels is not None
    assert stack.coarse is None
    assert_array_equal(stack.labels, labels[:first])


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    images, coarse, fine = pixels(4, 3, 32, 32), np.array([19, 0, 7, 3]), np.array([99, 4, 50, 0])
    path = write_tar(tmp_path / "a.tar.gz", {"cifar-100-binary/train.bin": cifar_bytes(images, coarse, fine)})
    stack = read_cifar([path], members=("train.bin",), labels=2)
    assert stack.labels is not None
    assert stack.coarse is not None
    assert_array_equal(stack.images, images)
    assert_array_equal(stack.labels, fine)
    assert_array_equal(stack.coarse, coarse)


def test_damaged_cifar(tmp_path: Path) -> None:
    batches, _, _ = cifar10_batches()
    short = written(tmp_path / "data_batch_1.bin", batches["data_batch_1.bin"][:-1])
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is damaged: 6,145 bytes, expected a multiple of 3073"):
        read_cifar([short])
    archive = write_tar(tmp_path / "a.tar.gz", {"data_batch_1.bin": batches["data_batch_1.bin"]})
    with pytest.raises(ValueError, match=r"a\.tar\.gz.*has no data_batch_2\.bin"):
        read_cifar([archive], members=tuple(batches))
    archive.write_bytes(archive.read_bytes()[:4000])
    with pytest.raises(ValueError, match=r"a\.tar\.gz is damaged"):
        read_cifar([archive], members=("data_batch_1.bin",))


def test_svhn(tmp_path: Path) -> None:
    images, labels = pixels(32, 32, 3, 4), np.array([[10], [1], [9], [10]], np.uint8)
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": images, "y": labels})
    stack = read_svhn([path], 3)
    assert_array_equal(stack.images[2], images[:, :, :, 2].transpose(2, 0, 1))
    assert stack.labels is not None
    assert stack.labels.tolist() == [0, 1, 9]
    scipy.io.savemat(path, {"X": images, "y": labels[:3]})
    with pytest.raises(ValueError, match=r"train_32x32\.mat.*expected 4 labels from 1 to 10"):
        read_svhn([path])
    scipy.io.savemat(path, {"X": images})
    with pytest.raises(ValueError, match=r"train_32x32\.mat is damaged"):
        read_svhn([path])
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"train_32x32\.mat is damaged"):
        read_svhn([path])


def png(image: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_in_a_zip_and_in_npz(tmp_path: Path) -> None:
    images = pixels(3, 8, 9, 3)
    files = [png(images[0]), png(images[1]), png(images[2])]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number, data in enumerate(files):
            archive.writestr(f"val/{number}.png", data)
    assert_array_equal(read_zip([tmp_path / "a.zip"], pattern="val/{}.png").images, images.transpose(0, 3, 1, 2))
    assert len(read_zip([tmp_path / "a.zip"], 2, pattern="val/{}.png").images) == 2
    with pytest.raises(ValueError, match=r"a\.zip.*has no test/0"):
        read_zip([tmp_path / "a.zip"], pattern="test/{}")


@pytest.mark.parametrize("first", [None, 2])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, first: int | None, save: Any) -> None:
    grey, colour, columns = pixels(4, 5, 6), pixels(4, 5, 6, 3), np.asfortranarray(pixels(4, 5, 6))
    for images, expected in (grey, grey[:, None]), (colour, colour.transpose(0, 3, 1, 2)), (columns, columns[:, None]):
        save(tmp_path / "a.npz", images=images, labels=LABELS, coarse=LABELS // 3)
        stack = read_npz([tmp_path / "a.npz"], first)
        assert_array_equal(stack.images, expected[:first])
        assert stack.labels is not None
        assert stack.coarse is not None
        assert_array_equal(stack.labels, LABELS[:first])
        assert_array_equal(stack.coarse, LABELS[:first] // 3)


def test_damaged_npz(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", images=pixels(4, 5, 6))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"a\.npz is damaged"):
        read_npz([path])
    with pytest.raises(ValueError, match=r"a\.npz.*it holds \['pictures'\], expected 'images'"):
        read_npz([write_npz(path, pictures=pixels(4, 5, 6))])
    with pytest.raises(ValueError, match=r"a\.npz.*never unpickled"):
        read_npz([write_npz(path, images=np.array([{}, {}], dtype=object))])
    with pytest.raises(ValueError, match=r"a\.npz.*\(4, 5, 6, 7\)"):
        read_npz([write_npz(path, images=pixels(4, 5, 6, 7))])


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (Stack(pixels(4, 1, 5, 6), LABELS[:3]), r"f\.npz: expected one whole-number label per image, 4"),
        (Stack(pixels(4, 1, 5, 6), LABELS.astype(float)), "whole-number"),
        (Stack(pixels(4, 1, 5, 6), LABELS + 1), r"f\.npz: labels run from 1 to 10, expected 0 to 9"),
        (Stack(pixels(4, 1, 5, 6), LABELS.astype(int) - 1), "labels run from -1 to 8"),
        (Stack(pixels(4, 1, 5, 6), LABELS, LABELS), "coarse labels run from 0 to 9, expected 0 to 2"),
        (Stack(pixels(0, 1, 5, 6)), "expected images"),
        (Stack(pixels(4, 1, 5, 6).astype(np.float32)), "expected images uint8"),  # type: ignore[arg-type]
    ],
)
def test_labels_that_do_not_fit(stack: Stack, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(stack, Path("f.npz"), classes=10, groups=3)
