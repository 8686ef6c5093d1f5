"""Folders of images: what is read, upright and in the right colours, and what is refused by name."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bnn.data import Augment, folder, preparation
from bnn.data.image_files import FolderPreparation, ImageFileError, check_memory, decode, header, memory_bytes

Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")


def pixels(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def make(root: pathlib.Path, count: int = 10, shape: tuple[int, ...] = (6, 5, 3), classes: str = "ab") -> pathlib.Path:
    """`count` images per class; image i of a class is brighter the larger i."""
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(pixels(*shape, seed=100 * c + i)).save(root / name / f"{i:02}.png")
    return root


def save(root: pathlib.Path, name: str, image: Any, **options: Any) -> pathlib.Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


# What is read


def test_every_image_arrives_with_its_class(tmp_path: pathlib.Path) -> None:
    data = folder(make(tmp_path / "pets", classes="ba"))
    assert (data.name, data.task, data.classes) == ("pets", "classification", ("a", "b"))
    assert (len(data.train), len(data.validation), len(data.test)) == (14, 2, 4)
    assert data.in_shape == (3, 6, 5)
    want = {pixels(6, 5, 3, seed=100 * c + i).tobytes(): "ba"[c] for c in range(2) for i in range(10)}
    got = {}
    for part in (data.train, data.validation, data.test):
        assert part.x.dtype == torch.uint8
        for x, y in zip(part.x, part.y, strict=True):
            got[x.permute(1, 2, 0).numpy().tobytes()] = data.classes[y]
    assert got == want
    assert data.test.y.tolist() == [0, 0, 1, 1]  # every class keeps its share


def test_scaling_is_learned_on_the_training_part_alone(tmp_path: pathlib.Path) -> None:
    data = folder(make(tmp_path))
    x = data.train.inputs()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3))
    raw = data.train.x.double() / 255
    torch.testing.assert_close(torch.tensor(data.preparation.scaling.mean).double(), raw.mean((0, 2, 3)))


def test_folders_of_parts(tmp_path: pathlib.Path) -> None:
    for part, count in (("train", 8), ("test", 3), ("val", 2)):
        make(tmp_path / part, count)
    data = folder(tmp_path)
    assert (len(data.train), len(data.test), len(data.validation)) == (16, 6, 4)
    assert torch.equal(data.test.x[0], data.train.x[0])  # the same file by construction
    (tmp_path / "val").rename(tmp_path / ".hidden")
    data = folder(tmp_path, validation=0.25)
    assert (len(data.train), len(data.test), len(data.validation)) == (12, 6, 4)


def test_classes_may_be_called_train_and_test(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "x").joinpath("a").rename(tmp_path / "train")
    (tmp_path / "x" / "b").rename(tmp_path / "test")
    (tmp_path / "x").rmdir()
    assert folder(tmp_path).classes == ("test", "train")


def test_the_split_depends_on_the_seed_alone(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    assert torch.equal(folder(tmp_path, seed=1).train.x, folder(tmp_path, seed=1).train.x)
    assert not torch.equal(folder(tmp_path, seed=1).train.x, folder(tmp_path, seed=2).train.x)


def test_images_below_a_class_belong_to_it_and_loops_are_not_followed(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    save(tmp_path, "a/deep/er/x.PNG", Image.fromarray(pixels(6, 5, 3, seed=99)))
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    data = folder(tmp_path, test=None, validation=None)
    assert data.classes == ("a", "b")
    assert len(data.train) == 21


def test_other_files_are_counted_and_hidden_ones_passed_over(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    for name in (".DS_Store", "a/.DS_Store", "a/Thumbs.db"):
        (tmp_path / name).write_bytes(b"\0")
    folder(tmp_path)  # silently
    for name in ("readme.txt", "a/notes.txt"):
        (tmp_path / name).write_text("hello")
    with pytest.warns(UserWarning, match=r"2 files or folders are no images of a class: a.notes.txt; readme.txt"):
        data = folder(tmp_path, test=None, validation=None)
    assert len(data.train) == 20


def test_augment(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    assert folder(tmp_path).augment is None
    assert isinstance(folder(tmp_path, augment=True).augment, Augment)
    assert folder(tmp_path, augment=max).augment is max


# Pixels


def test_grey_is_found_out_or_given(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "grey", shape=(6, 5))
    assert folder(tmp_path / "grey").in_shape == (1, 6, 5)
    assert folder(tmp_path / "grey", grey=False).in_shape == (3, 6, 5)
    make(tmp_path / "mixed", shape=(6, 5))
    make(tmp_path / "mixed", count=1)
    assert folder(tmp_path / "mixed").in_shape == (3, 6, 5)
    assert folder(tmp_path / "mixed", grey=True).in_shape == (1, 6, 5)


def test_modes_become_bytes_of_the_right_value(tmp_path: pathlib.Path) -> None:
    def read(image: Any, name: str, grey: bool = True, **options: Any) -> Any:
        path = save(tmp_path, name, image, **options)
        assert header(path).size == (2, 3)
        return decode(path, (2, 3), grey)

    wide = (np.arange(6).reshape(2, 3) * 13107).astype(np.uint16)  # 0 to 65535 in fifths
    assert read(Image.fromarray(wide), "wide.png").tolist() == [[[0, 51, 102], [153, 204, 255]]]
    assert read(Image.fromarray(wide), "wide.tif").tolist() == [[[0, 51, 102], [153, 204, 255]]]
    bits = Image.fromarray(np.array([[0, 1, 0], [1, 1, 0]], dtype=bool))
    assert read(bits, "bits.png").tolist() == [[[0, 255, 0], [255, 255, 0]]]
    clear = Image.new("RGBA", (3, 2), (255, 0, 0, 0))  # red, if it could be seen
    assert read(clear, "clear.png", grey=False).tolist() == [[[255] * 3] * 2] * 3
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert read(palette, "palette.gif", grey=False)[:, 0, 0].tolist() == [10, 20, 30]
    assert read(palette, "hole.png", grey=False, transparency=1)[:, 0, 0].tolist() == [255] * 3
    ink = Image.new("CMYK", (3, 2), (0, 255, 255, 0))
    assert read(ink, "ink.tif", grey=False)[:, 0, 0].tolist() == [255, 0, 0]


def test_wide_floats_are_refused(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path, "float.tif", Image.fromarray(np.ones((2, 3), dtype=np.float32)))
    with pytest.raises(ImageFileError, match=r"float.tif: pixels of 32 bits \(mode 'F'\) have no fixed range"):
        decode(path, (2, 3), grey=True)


def test_images_are_turned_upright(tmp_path: pathlib.Path) -> None:
    image = Image.fromarray(pixels(4, 6, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    path = save(tmp_path, "lies.png", image, exif=exif)
    assert header(path).size == (6, 4)
    assert np.array_equal(decode(path, (6, 4), grey=False), np.rot90(pixels(4, 6, 3), -1).transpose(2, 0, 1))


def test_size_scales_the_short_side_and_cuts_the_centre(tmp_path: pathlib.Path) -> None:
    stripes = np.zeros((8, 24), dtype=np.uint8)
    stripes[:, 8:16] = 200  # the middle third
    path = save(tmp_path, "a/wide.png", Image.fromarray(stripes))
    assert decode(path, (8, 8), grey=True).tolist() == [[[200] * 8] * 8]
    assert decode(path, (4, 4), grey=True)[0, :, 1:3].tolist() == [[200, 200]] * 4
    checks = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = decode(save(tmp_path, "b/checks.png", Image.fromarray(checks)), (8, 8), grey=True)
    assert abs(small.astype(int) - 127).max() <= 2  # smoothed before it is shrunk
    for name in ("a", "b"):
        for i in range(4):
            save(tmp_path, f"{name}/{i}.jpg", Image.fromarray(pixels(30 + i, 40, 3)))
    data = folder(tmp_path, size=(8, 6))
    assert data.in_shape == (3, 8, 6)
    assert folder(tmp_path, size=7).in_shape == (3, 7, 7)


def test_large_jpegs_are_not_much_changed_by_reading_them_small(tmp_path: pathlib.Path) -> None:
    ramp = np.add.outer(np.linspace(0, 120, 400), np.linspace(0, 120, 600)).astype(np.uint8)
    large = save(tmp_path, "ramp.jpg", Image.fromarray(ramp), quality=95)
    plain = save(tmp_path, "ramp.png", Image.fromarray(ramp))
    assert abs(decode(large, (16, 16), True).astype(int) - decode(plain, (16, 16), True)).max() <= 2


# What is refused


def damaged(root: pathlib.Path, name: str) -> pathlib.Path:
    good = save(root, "good.png", Image.fromarray(pixels(6, 5, 3))).read_bytes()
    (root / "good.png").unlink()
    content = {"empty": b"", "cut": good[:70], "text": b"hello", "body": good[:50] + b"\0" * 20 + good[70:]}
    path = root / "b" / f"{name}.png"
    path.write_bytes(content[name])
    return path


@pytest.mark.parametrize("name", ["empty", "cut", "text", "body"])
def test_a_damaged_image_is_named(tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    path = damaged(tmp_path, name)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as some programs leave it
    with pytest.raises(ImageFileError, match=f"cannot read the image {path}: .*skip_corrupt=True"):
        folder(tmp_path)
    assert ImageFile.LOAD_TRUNCATED_IMAGES
    with pytest.warns(UserWarning, match=f"1 damaged images are left out: cannot read the image {path}"):
        data = folder(tmp_path, skip_corrupt=True, test=None, validation=None)
    path.unlink()
    assert torch.equal(data.train.x, folder(tmp_path, test=None, validation=None).train.x)


def test_a_broken_link_is_named(tmp_path: pathlib.Path) -> None:
    make(tmp_path).joinpath("a", "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ImageFileError, match=r"cannot read the image .*gone.png"):
        folder(tmp_path)


def test_sizes_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    make(tmp_path)
    save(tmp_path, "b/99.png", Image.fromarray(pixels(7, 5, 3)))
    with pytest.raises(
        ValueError, match=r"a.00.png is 6 x 5, .*b.99.png is 7 x 5 \(height x width\).*size=32 or size=\(H"
    ):
        folder(tmp_path)
    assert folder(tmp_path, size=5).in_shape == (3, 5, 5)


def _no_classes(root: pathlib.Path) -> None:
    save(root, "1.png", Image.fromarray(pixels(6, 5, 3)))


def _one_class(root: pathlib.Path) -> None:
    make(root, classes="a")


def _an_empty_class(root: pathlib.Path) -> None:
    make(root).joinpath("c").mkdir()


def _only_in_test(root: pathlib.Path) -> None:
    make(root / "train")
    make(root / "test", classes="abc")


def _an_empty_test(root: pathlib.Path) -> None:
    make(root / "train")
    (root / "test" / "a").mkdir(parents=True)


def _all_damaged(root: pathlib.Path) -> None:
    make(root).joinpath("c").mkdir()
    (root / "c" / "1.png").write_bytes(b"")


@pytest.mark.filterwarnings("ignore:.*damaged images")
@pytest.mark.parametrize(
    ("build", "error"),
    [
        (_no_classes, r"has 0 folders of classes \[\], at least two are needed: .*cat"),
        (_one_class, r"has 1 folders of classes \['a'\], at least two are needed"),
        (_an_empty_class, "classes without an image to train on: 'c'; add some or remove them"),
        (_only_in_test, "classes in test that have no folder in train: 'c'"),
        (_an_empty_test, "the folder of the test part has no images; fill it or remove it"),
        (_all_damaged, "classes without a readable image to train on: 'c'"),
    ],
)
def test_classes_that_cannot_be_learned(tmp_path: pathlib.Path, build: Callable[..., None], error: str) -> None:
    build(tmp_path)
    with pytest.raises(ValueError, match=error):
        folder(tmp_path, skip_corrupt=True)


def test_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"absent does not exist; expected a folder with one folder of images"):
        folder(tmp_path / "absent")


@pytest.mark.parametrize("size", [0, (3,), (3, -1), "32", True, 3.5])
def test_sizes_that_are_none(tmp_path: pathlib.Path, size: Any) -> None:
    make(tmp_path)
    with pytest.raises(ValueError, match="size must be"):
        folder(tmp_path, size=size)


def test_what_will_not_fit_is_refused_before_it_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    module = sys.modules["bnn.data.image_files"]
    monkeypatch.setattr(module, "memory_bytes", lambda: 1000)
    monkeypatch.setattr(sys.modules["bnn.data.image_folders"], "decode", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(MemoryError, match=r"20 images of 6 x 5 pixels take .* give a smaller size=, such as size=64"):
        folder(tmp_path)
    monkeypatch.undo()
    there = memory_bytes()
    assert there is None or there > 2**26
    check_memory((10, 3, 32, 32))


def test_a_container_may_have_less_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("5000\n")
    monkeypatch.setattr(sys.modules["bnn.data.image_files"], "CONTAINER", limit)
    assert memory_bytes() == 5000
    limit.write_text("max\n")
    assert (memory_bytes() or 0) > 5000


def test_progress_is_shown_when_asked_for(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    make(tmp_path)
    folder(tmp_path)
    assert capsys.readouterr() == ("", "")
    folder(tmp_path, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "reading images" in shown.err


# New images


def test_new_files_are_read_like_those_of_training(tmp_path: pathlib.Path) -> None:
    data = folder(make(tmp_path / "data"), test=None, validation=None)
    prepare = preparation(json.loads(json.dumps(data.preparation.to_dict())))
    assert prepare == data.preparation
    assert isinstance(prepare, FolderPreparation)
    files = [tmp_path / "data" / name / f"{i:02}.png" for name in "ab" for i in range(10)]
    x = data.train.inputs()
    assert torch.equal(prepare(files), x)
    assert torch.equal(prepare([str(file) for file in files]), x)
    assert torch.equal(prepare(tmp_path / "data"), x)
    assert prepare.files(tmp_path / "data") == files
    assert torch.equal(prepare(data.train.x), x)
    assert torch.equal(prepare(data.train.x.numpy()), x)
    assert torch.equal(prepare(os.fspath(files[3])), x[3:4])


def test_new_files_of_another_size_and_mode(tmp_path: pathlib.Path) -> None:
    exact = folder(make(tmp_path / "data")).preparation
    scaled = folder(tmp_path / "data", size=(6, 5)).preparation
    new = save(tmp_path, "new.png", Image.fromarray(pixels(60, 50)))
    with pytest.warns(UserWarning, match="new.png is 60 x 50 and is scaled to 6 x 5"):
        x = exact(new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(scaled(new), x)
    assert x.shape == (1, 3, 6, 5)


def test_new_images_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    prepare = folder(make(tmp_path / "data")).preparation
    with pytest.raises(ValueError, match=r"expected uint8 images \(N, 3, 6, 5\), got torch.float32 \(2, 3, 6, 5\)"):
        prepare(torch.zeros(2, 3, 6, 5))
    with pytest.raises(ValueError, match=r"got torch.uint8 \(2, 1, 6, 5\)"):
        prepare(torch.zeros(2, 1, 6, 5, dtype=torch.uint8))
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"there are no images in .*none"):
        prepare(tmp_path / "none")
    with pytest.raises(ValueError, match=r"there are no images in \[\]"):
        prepare([])
    with pytest.raises(ImageFileError, match=r"cannot read the image .*absent.png"):
        prepare([tmp_path / "absent.png"])
    with pytest.raises(ValueError, match=r"got torch.uint8 \(3, 6, 5\); image\[None\] makes a batch of one"):
        prepare(torch.zeros(3, 6, 5, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"expected the path of an image .*; got a int"):
        prepare([3])


@pytest.mark.parametrize("grey", [False, True])
def test_an_image_in_memory_is_told_what_to_pass(tmp_path: pathlib.Path, grey: bool) -> None:
    prepare = folder(make(tmp_path / "data"), grey=grey).preparation
    path = tmp_path / "data" / "a" / "03.png"
    image = Image.open(path)
    for raw in (image, [image]):
        with pytest.raises(TypeError, match=r"expected the path of an image .*; got a PngImageFile; .*, pass np"):
            prepare(raw)
    advised = np.asarray(image.convert("L").resize((5, 6)))[None, None]
    if not grey:
        advised = np.asarray(image.convert("RGB").resize((5, 6))).transpose(2, 0, 1)[None]
    with pytest.raises(TypeError, match=r"resize\(\(5, 6\)\)\)" + (r"\[None, None\]$" if grey else r".*\[None\]$")):
        prepare(image)
    assert torch.equal(prepare(advised), prepare(path))
