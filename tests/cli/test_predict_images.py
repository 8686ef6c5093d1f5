from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from predict_runs import command, expected, rows_of, trained, write_image

import bnn.data
from bnn.train import load_run

CNN = {"name": "cnn", "channels": [4], "hidden": [8]}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("digits") / "run", {"name": "digits", "first": 200}, CNN)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of two classes, 6 x 8 pixels in grey, and a run on it."""
    root = tmp_path_factory.mktemp("pictures")
    for name, seeds in (("cat", range(12)), ("dog", range(12, 24))):
        for seed in seeds:
            write_image(root / "train" / name / f"{seed}.png", (6, 8), seed)
    trained(root / "run", {"folder": str(root / "train"), "test": 0.25}, CNN)
    return root


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on colour images in an array, channels last."""
    folder, random = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    x = random.integers(0, 256, (40, 8, 6, 3), dtype=np.uint8)
    np.savez(folder / "both.npz", x=x, y=np.arange(40) % 2)
    return trained(folder / "run", {"arrays": str(folder / "both.npz")}, CNN)


def totals(rows: list[dict[str, Any]]) -> Any:
    return np.array([row["total"] for row in rows])


def as_files(images: Any, folder: Path) -> list[Path]:
    """Images (N, H, W) or (N, H, W, 3) as PNG files."""
    paths = [folder / f"{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


def test_digits_as_files_and_as_arrays_are_the_same(digits: Path, tmp_path: Path) -> None:
    part = bnn.data.load("digits").test
    assert part is not None
    images = part.x[:5].numpy()  # (5, 1, 8, 8)
    wanted = expected(digits, load_run(digits).preparation(part.x[:5]))
    paths = as_files(images[:, 0], tmp_path)
    ended = command(digits, *paths, "--json")
    assert [line for line in ended.err.splitlines() if "is not known" not in line] == ["5 inputs"]  # no note of sizes
    assert [row["input"] for row in ended.json["rows"]] == [str(path) for path in paths]
    np.testing.assert_allclose(totals(ended.json["rows"]), wanted.total.numpy(), rtol=2e-6)
    for name, array in (("a", images), ("b", images[:, 0]), ("c", images.transpose(0, 2, 3, 1))):
        np.save(tmp_path / f"{name}.npy", array)
        rows = rows_of(digits, tmp_path / f"{name}.npy")
        assert [row["input"] for row in rows] == [f"row {i}" for i in range(5)]
        np.testing.assert_allclose(totals(rows), wanted.total.numpy(), rtol=2e-6)


def test_files_folders_and_arrays_are_joined_in_order(digits: Path, tmp_path: Path) -> None:
    one, two = write_image(tmp_path / "in" / "b" / "z.png", seed=1), write_image(tmp_path / "in" / "c.png", seed=2)
    (tmp_path / "in" / "notes.txt").write_text("mine")
    three = write_image(tmp_path / "d.png", seed=3)
    array = tmp_path / "e.npy"
    np.save(array, np.random.default_rng(4).integers(0, 256, (2, 8, 8), dtype=np.uint8))
    ended = command(digits, array, tmp_path / "in", three, "--json")
    names = [row["input"] for row in ended.json["rows"]]
    assert names == [f"{array}, row 0", f"{array}, row 1", str(two), str(one), str(three)]
    folder = tmp_path / "in"
    assert f"note: left out in {folder}, because they are no images: {folder / 'notes.txt'}\n" in ended.err
    stacked = np.stack([*np.load(array), *(np.array(Image.open(path)) for path in (two, one, three))])[:, None]
    wanted = expected(digits, load_run(digits).preparation(stacked))
    np.testing.assert_allclose(totals(ended.json["rows"]), wanted.total.numpy(), rtol=2e-6)


def test_images_of_another_size_are_scaled_with_a_note(digits: Path, tmp_path: Path) -> None:
    flat = np.full((16, 16), 77, dtype=np.uint8)
    (path,) = as_files([flat], tmp_path)
    ended = command(digits, path, "--json")
    assert f"note: {path} is not 8 x 8 pixels, as in training, and scaled to that" in ended.err
    wanted = expected(digits, load_run(digits).preparation(torch.full((1, 1, 8, 8), 77, dtype=torch.uint8)))
    np.testing.assert_allclose(totals(ended.json["rows"]), wanted.total.numpy(), rtol=2e-6)
    small = write_image(tmp_path / "small.png")
    assert f"note: 1 of 2 images are not 8 x 8 pixels, as in training, and scaled to that, as {path} (16 x 16)" in (
        command(digits, small, path).err
    )


def test_a_run_on_a_folder(pictures: Path) -> None:
    run, folder = pictures / "run", pictures / "train" / "dog"
    rows = rows_of(run, folder)
    preparation = load_run(run).preparation
    assert [row["input"] for row in rows] == [str(path) for path in preparation.files(folder)]
    wanted = expected(run, preparation(folder))
    np.testing.assert_allclose(totals(rows), wanted.total.numpy(), rtol=2e-6)
    assert {row["class"] for row in rows} <= {"cat", "dog"}


def test_colour_images_in_arrays_and_files(colours: Path, tmp_path: Path) -> None:
    run, images = colours, np.random.default_rng(1).integers(0, 256, (4, 8, 6, 3), dtype=np.uint8)
    wanted = expected(run, load_run(run).preparation(images)).total.numpy()
    np.save(tmp_path / "last.npy", images)
    np.save(tmp_path / "first.npy", images.transpose(0, 3, 1, 2))
    for given in ([tmp_path / "last.npy"], [tmp_path / "first.npy"], as_files(images, tmp_path)):
        np.testing.assert_allclose(totals(rows_of(run, *given)), wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut.png", "cannot read the image {path}"),
        ("empty.png", "cannot read the image {path}: the file is empty"),
        ("text.foo", "cannot read the image {path}: it is damaged, or no image at all"),
        ("rows.csv", "this run was trained on grey images of 8 x 8 pixels: give image files (.png"),
        (
            "float.npy",
            "{path} must hold uint8 images, 0 to 255, (N, 1, 8, 8) or (N, 8, 8, 1) or (N, 8, 8); got float64",
        ),
        ("large.npy", "got uint8 of shape (2, 9, 9)"),
        ("nothing", "there are no images in {path}; this run was trained on"),
        ("missing.png", "there is no file {path}"),
    ],
)
def test_what_is_no_image_is_named_and_nothing_written(digits: Path, tmp_path: Path, name: str, message: str) -> None:
    good = write_image(tmp_path / "good.png")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:60])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.foo").write_text("text")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "nothing").mkdir()
    np.save(tmp_path / "float.npy", np.zeros((2, 8, 8)))
    np.save(tmp_path / "large.npy", np.zeros((2, 9, 9), dtype=np.uint8))
    path = tmp_path / name
    ended = command(digits, good, path, "--out", tmp_path / "table.csv")
    assert (ended.code, ended.out) == (2, "")
    assert message.format(path=path) in ended.err
    assert not (tmp_path / "table.csv").exists()


def test_images_of_a_run_on_tables_only_fit_there(digits: Path, tmp_path: Path) -> None:
    ended = command(digits, write_image(tmp_path / "a.png"), "--keep", "id")
    assert ended.code == 2
    assert "--keep id names a column of a table, and these inputs are none" in ended.err


def test_an_answer_does_not_depend_on_those_beside_it(digits: Path, tmp_path: Path) -> None:
    images = bnn.data.load_part("digits").x[:40].numpy()
    np.save(tmp_path / "all.npy", images)
    np.save(tmp_path / "few.npy", images[7:10])
    together, alone = (rows_of(digits, tmp_path / f"{name}.npy") for name in ("all", "few"))
    for one, other in zip(together[7:10], alone, strict=True):
        assert one["class"] == other["class"]
        assert float(one["epistemic"]) == pytest.approx(float(other["epistemic"]), rel=1e-3, abs=1e-6)
