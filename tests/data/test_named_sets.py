"""Data sets by name, from small files in every form; digits against scikit-learn's."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import sklearn.datasets
import torch
from made_sets import cifar_bytes, pixels, write_grey, write_idx, write_npz, write_tar, written

import bnn.data
from bnn.data import Augment
from bnn.data.images import ImageScaling
from bnn.data.named_sets import catalogue, store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BNN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BNN_DOWNLOAD", raising=False)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_digits_are_scikit_learns() -> None:
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    data = bnn.data.load("digits")
    assert data.test is not None
    assert data.train.y is not None
    assert data.test.y is not None
    assert (len(data.train), len(data.test), data.out_features) == (1297, 500, 10)
    assert data.classes == tuple("0123456789")
    stored = torch.cat([data.train.x, data.test.x])
    assert stored.dtype == torch.uint8
    assert torch.equal(stored.flatten(1), torch.tensor((x * 255 / 16 + 0.5).astype(np.uint8)))
    assert torch.equal(torch.cat([data.train.y, data.test.y]), torch.tensor(y))


def test_digits_are_scaled_by_the_training_part_and_not_augmented() -> None:
    data = bnn.data.load("digits")
    inputs = data.train.inputs()
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert data.test is not None
    assert data.test.prepare == data.train.prepare == data.preparation
    assert data.augment is None


def test_options_of_every_set() -> None:
    data = bnn.data.load("digits", first=100, validation=0.2, augment=True)
    assert data.test is not None
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (80, 20, 100)
    assert data.augment == Augment(pad=1, flip=False)
    assert data.augment(data.train.x, torch.Generator().manual_seed(0)).shape == data.train.x.shape
    other = bnn.data.load("digits", first=100, validation=0.2, seed=1).validation
    assert other is not None
    assert not torch.equal(other.x, data.validation.x)


def test_digits_need_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BNN_DATA")
    monkeypatch.setattr(store, "folders", lambda: pytest.fail("digits come with the package"))
    assert len(bnn.data.load("digits").train) == 1297


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mnit", "'mnist'"), ("Fashion-MNIST", "'fashion_mnist'"), ("cifar-10", "'cifar10'"), ("boston", "'uci/boston'")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=rf"unknown data set {name!r} \(did you mean .*{meant}.*The names are digits, mni"
    ):
        bnn.data.load(name)


@pytest.mark.parametrize("name", ["", "zzz", None, 3, ["mnist"]])
def test_a_name_like_no_other(name: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown data set .*The names are digits"):
        bnn.data.load(name)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "digits",
            {"split": 1},
            TypeError,
            "digits has no option 'split'; it has first, validation, guarantee, seed, augment",
        ),
        ("digits", {"coarse": True}, TypeError, "no option 'coarse'"),
        ("uci/yacht", {"augment": True}, TypeError, "it has first, validation, guarantee, seed, split"),
        ("digits", {"augment": "no"}, ValueError, "augment must be true or false"),
        ("digits", {"first": 0}, ValueError, "first must be a whole number of at least 1"),
        ("digits", {"first": True}, ValueError, "first must be"),
        ("digits", {"first": 1.5}, ValueError, "first must be"),
        ("digits", {"validation": 1.5}, ValueError, "fraction must lie between 0 and 1"),
        ("tiny_imagenet", {}, ValueError, r"bnn\.data\.ood\('tiny_imagenet'"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bnn.data.load(name, **options)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist", "notmnist"])
def test_grey_sets_from_npz(folder: Path, name: str) -> None:
    made = write_grey(folder, name)
    data = bnn.data.load(name)
    assert data.test is not None
    assert data.train.y is not None
    assert (data.name, data.task, data.in_shape, len(data.classes)) == (name, "classification", (1, 28, 28), 10)
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(made["train"]))
    assert torch.equal(data.test.x[:, 0], torch.from_numpy(made["test"]))
    assert data.train.y.dtype == torch.int64
    assert data.train.y.tolist() == made["train_labels"].tolist()
    assert data.preparation == ImageScaling.learned(data.train.x)
    assert data.augment is None


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_its_own_files(folder: Path, place: str, packed: bool) -> None:
    train, test, labels = pixels(6, 28, 28), pixels(4, 28, 28, seed=1), np.arange(6, dtype=np.uint8)
    write_idx(folder / place, "train", train, labels, packed)
    write_idx(folder / place, "t10k", test, labels[:4], packed)
    data = bnn.data.load("mnist", first=5)
    assert data.test is not None
    assert data.test.y is not None
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(train[:5]))
    assert torch.equal(data.test.x[:, 0], torch.from_numpy(test))
    assert data.test.y.tolist() == [0, 1, 2, 3]


def test_sets_with_files_of_the_same_name_are_told_apart(folder: Path) -> None:
    for place, seed in ("mnist", 0), ("fashion-mnist", 1):
        for start in ("train", "t10k"):
            write_idx(folder / place, start, pixels(6, 28, 28, seed=seed), np.arange(6, dtype=np.uint8))
    assert torch.equal(bnn.data.load("mnist").train.x[:, 0], torch.from_numpy(pixels(6, 28, 28, seed=0)))
    assert torch.equal(bnn.data.load("fashion_mnist").train.x[:, 0], torch.from_numpy(pixels(6, 28, 28, seed=1)))


def write_cifar10(path: Path) -> Any:
    made, labels = pixels(12, 3, 32, 32), np.arange(12) % 10
    cuts = {f"data_batch_{i + 1}": slice(2 * i, 2 * i + 2) for i in range(5)} | {"test_batch": slice(10, 12)}
    records = {f"cifar-10-batches-bin/{name}.bin": cifar_bytes(made[cut], labels[cut]) for name, cut in cuts.items()}
    write_tar(path, records)
    return made


def test_cifar10_from_the_archive_and_its_augmentation(folder: Path) -> None:
    made = write_cifar10(folder / "cifar-10-binary.tar.gz")
    data = bnn.data.load("cifar10")
    assert data.test is not None
    assert data.train.y is not None
    assert torch.equal(data.train.x, torch.from_numpy(made[:10]))
    assert torch.equal(data.test.x, torch.from_numpy(made[10:]))
    assert data.train.y.tolist() == list(range(10))
    assert data.augment == Augment(pad=4, flip=True)
    assert bnn.data.load("cifar10", augment=False).augment is None
    assert data.preparation == ImageScaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def test_cifar10_as_plain_arrays(folder: Path) -> None:
    for part, seed in ("train", 0), ("test", 1):
        made = pixels(3, 8, 8, 3, seed=seed)
        write_npz(folder / f"cifar10_{part}.npz", images=made, labels=np.arange(3, dtype=np.uint8))
    data = bnn.data.load("cifar10")
    assert data.test is not None
    assert torch.equal(data.test.x, torch.from_numpy(pixels(3, 8, 8, 3, seed=1)).permute(0, 3, 1, 2))


def test_cifars_pickle_is_not_read(folder: Path) -> None:
    written(folder / "cifar-10-python.tar.gz", b"")
    with pytest.raises(FileNotFoundError, match="is a pickle and is never read: take the binary version"):
        bnn.data.load("cifar10")


def test_cifar100_fine_and_coarse(folder: Path) -> None:
    made, coarse, fine = pixels(4, 3, 32, 32), np.array([19, 0, 7, 3]), np.array([99, 4, 50, 0])
    records = cifar_bytes(made, coarse, fine)
    write_tar(folder / "cifar100" / "cifar-100-binary.tar.gz", {"c/train.bin": records, "c/test.bin": records})
    data, groups = bnn.data.load("cifar100"), bnn.data.load("cifar100", coarse=True)
    assert data.train.y is not None
    assert groups.train.y is not None
    assert data.train.y.tolist() == fine.tolist()
    assert groups.train.y.tolist() == coarse.tolist()
    assert (len(data.classes), len(groups.classes)) == (100, 20)
    assert (data.classes[99], groups.classes[19]) == ("worm", "vehicles 2")


def test_classes_have_names_of_their_own() -> None:
    for one in catalogue.IMAGE_SETS.values():
        assert len(set(one.classes)) == len(one.classes)
        assert len(one.classes) in ((0,) if one.name == "tiny_imagenet" else (10, 100))
    assert list(catalogue.CIFAR100) == sorted(catalogue.CIFAR100)  # the official order


def test_svhn_is_cropped_but_not_flipped(folder: Path) -> None:
    for part in ("train", "test"):
        path = written(folder / "svhn" / f"{part}_32x32.mat", b"")
        scipy.io.savemat(path, {"X": pixels(32, 32, 3, 5), "y": np.array([[10], [1], [2], [3], [9]])})
    data = bnn.data.load("svhn")
    assert data.train.y is not None
    assert data.train.y.tolist() == [0, 1, 2, 3, 9]
    assert data.augment == Augment(pad=4, flip=False)


def test_a_part_without_labels_is_for_load_part(folder: Path) -> None:
    made = pixels(7, 32, 32, 3)
    write_npz(folder / "svhn_train_first7.npz", images=made)
    with pytest.raises(FileNotFoundError, match=r"svhn_train_first7\.npz is there, which bnn\.data\.load_part"):
        bnn.data.load("svhn")
    part = bnn.data.load_part("svhn", "train", first=5)
    assert part.y is None
    assert torch.equal(part.x, torch.from_numpy(made[:5]).permute(0, 3, 1, 2))
    write_npz(folder / "svhn_train.npz", images=made)
    with pytest.raises(ValueError, match=r"svhn_train\.npz has no labels"):
        bnn.data.load("svhn")


def test_one_part_alone(folder: Path) -> None:
    write_grey(folder, "notmnist")
    (folder / "notmnist_train.npz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"notmnist_test\.npz is there, which bnn\.data\.load_part\('notmnist', 't"
    ):
        bnn.data.load("notmnist")
    part = bnn.data.load_part("notmnist")
    assert part.y is not None
    assert len(part) == len(part.y) == 20
    assert part.inputs().std(correction=0).item() == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="unknown part 'val'"):
        bnn.data.load_part("notmnist", "val")
    with pytest.raises(ValueError, match="uci/yacht is no image set"):
        bnn.data.load_part("uci/yacht")
    with pytest.raises(TypeError, match="no coarse labels"):
        bnn.data.load_part("notmnist", coarse=True)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(4, 28, 28), "labels": np.array([0, 1, 2])}, "expected one whole-number label per image, 4"),
        ({"images": pixels(4, 28, 28), "labels": np.array([0, 1, 2, 10])}, "labels run from 0 to 10, expected 0 to 9"),
        ({"images": pixels(4, 28, 28).astype(float), "labels": np.arange(4)}, "expected images uint8"),
        ({"labels": np.arange(4)}, "expected 'images'"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, arrays: dict[str, Any], message: str) -> None:
    write_grey(folder, "mnist")
    write_npz(folder / "mnist_test.npz", **arrays)
    with pytest.raises(ValueError, match=rf"mnist_test\.npz.*{message}"):
        bnn.data.load("mnist")


def test_a_download_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, other, labels = pixels(6, 28, 28), pixels(6, 28, 28, seed=1), np.arange(6, dtype=np.uint8)
    paths = write_idx(tmp_path / "site", "train", made, labels)
    paths += write_idx(tmp_path / "site", "t10k", other, labels[::-1].copy())
    sums = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    official = functools.partial(catalogue.idx, site=(tmp_path / "site").as_uri(), sums=sums)
    monkeypatch.setitem(catalogue.IMAGE_SETS, "mnist", replace(catalogue.IMAGE_SETS["mnist"], official=official))
    with pytest.raises(FileNotFoundError, match="pass download=True"):
        bnn.data.load("mnist")
    assert torch.equal(bnn.data.load("mnist", download=True).train.x[:, 0], torch.from_numpy(made))
    assert len(list((tmp_path / "cache" / "mnist").iterdir())) == 4
    assert len(bnn.data.load("mnist").train) == 6  # from the cache


def test_published_addresses_have_checksums_and_come_first() -> None:
    offered = {one.name for one in catalogue.IMAGE_SETS.values() if any(form.remotes for form in one.forms("test"))}
    assert offered == {"mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "svhn", "tiny_imagenet"}
    for one in catalogue.IMAGE_SETS.values():
        for part in catalogue.PARTS:
            for form in one.forms(part):
                assert len(form.remotes) in (0, len(form.files))
                for remote, file in zip(form.remotes, form.files, strict=False):
                    assert remote.url.rpartition("/")[2] == file.rpartition("/")[2]


def test_ood_takes_the_shape_and_scaling_of_the_other_set(folder: Path) -> None:
    write_grey(folder, "mnist")
    write_cifar10(folder / "cifar-10-binary.tar.gz")
    colour, grey = bnn.data.load("cifar10"), bnn.data.load("mnist")
    part = bnn.data.ood("mnist", colour, first=7)
    assert part.x.shape == (7, 3, 32, 32)
    assert part.x.dtype == torch.uint8
    assert part.y is None
    assert torch.equal(part.x[:, 0], part.x[:, 2])
    assert part.prepare == colour.train.prepare
    assert bnn.data.ood("cifar10", grey).x.shape == (2, 1, 28, 28)
    assert grey.test is not None
    assert torch.equal(bnn.data.ood("mnist", grey).x, grey.test.x)


def test_ood_resizes_and_averages_as_pillow_and_numpy_do(folder: Path) -> None:
    from PIL import Image

    from bnn.data.ood_sets import resized, with_channels

    colour = pixels(2, 3, 64, 64)
    small = resized(torch.from_numpy(colour), (32, 32)).numpy()
    for channel, original in zip(small.reshape(6, 32, 32), colour.reshape(6, 64, 64), strict=True):
        exact = Image.fromarray(original.astype(np.float32)).resize((32, 32), Image.Resampling.BILINEAR)  # not rounded
        assert np.abs(channel - np.asarray(exact)).max() <= 0.5 + 1e-3
    grey = with_channels(torch.from_numpy(colour), 1).numpy()
    np.testing.assert_array_equal(grey[:, 0], np.rint(colour.astype(np.float64).mean(1)))


def test_ood_takes_training_images_where_there_are_no_others(folder: Path) -> None:
    write_npz(folder / "svhn_train_first7.npz", images=pixels(7, 32, 32, 3))
    digits = bnn.data.load("digits", first=20)
    assert bnn.data.ood("svhn", digits).x.shape == (7, 1, 8, 8)
    with pytest.raises(FileNotFoundError, match="the test part of kmnist"):
        bnn.data.ood("kmnist", digits)


def test_ood_of_tiny_imagenet_and_for_what_is_no_image(folder: Path) -> None:
    write_npz(folder / "tiny_imagenet_val_first3.npz", images=pixels(3, 64, 64, 3), labels=np.array([0, 199, 5]))
    assert bnn.data.ood("tiny_imagenet", bnn.data.load("digits", first=20)).x.shape == (3, 1, 8, 8)
    table = bnn.data.arrays(np.eye(4), np.arange(4.0))
    with pytest.raises(ValueError, match="is no set of images"):
        bnn.data.ood("tiny_imagenet", table)
