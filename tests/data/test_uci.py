"""UCI regression sets: standard splits from one .npz, or from folders of text files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_sets import write_npz, written

import bnn.data
from bnn.data.named_sets.uci import UCI_SETS

ROWS = 12


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BNN_DATA", str(tmp_path))
    monkeypatch.setenv("BNN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def table(name: str = "yacht", splits: int = 20) -> dict[str, Any]:
    """A table of 12 rows and 3 columns, the last of which never changes, with random splits into 9 and 3 rows."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(5, 3, (ROWS, 2)), np.full(ROWS, 0.998)])
    orders = np.stack([rng.permutation(ROWS) for _ in range(splits)]).astype(np.uint16)
    found = {"x": x, "y": rng.normal(-20, 4, ROWS), "train": orders[:, :9], "test": orders[:, 9:]}
    return {f"{name}__{key}": value for key, value in found.items()}


def write_texts(place: Path, made: dict[str, Any], split: int, name: str = "yacht") -> None:
    """As data.txt, with the target in column 0, and index files."""
    columns = np.column_stack([made[f"{name}__y"], made[f"{name}__x"]])
    texts = {"data": columns, "index_features": [1, 2, 3], "index_target": [0]}
    texts |= {f"index_{part}_{split}": made[f"{name}__{part}"][split] for part in ("train", "test")}
    for file, values in texts.items():
        written(place / f"{file}.txt", b"")
        np.savetxt(place / f"{file}.txt", values)


@pytest.mark.parametrize("split", [0, 19])
@pytest.mark.parametrize("place", [None, "uci/yacht", "UCI_Datasets/yacht/data"])
def test_scaled_by_the_training_part_of_the_split(folder: Path, split: int, place: str | None) -> None:
    made = table()
    if place is None:
        write_npz(folder / "uci_regression.npz", **made)
    else:
        write_texts(folder / place, made, split)
    data = bnn.data.load("uci/yacht", split=split)
    x, y, train, test = (made[f"yacht__{one}"] for one in ("x", "y", "train", "test"))
    mean, sd = x[train[split]].mean(0), np.array([*x[train[split]].std(0)[:2], 1.0])  # a constant column: sd 1
    assert (data.name, data.task, data.in_shape, data.out_features) == ("uci/yacht", "regression", (3,), 1)
    assert data.test is not None
    assert data.train.y is not None
    assert data.test.y is not None
    assert data.target is not None
    np.testing.assert_allclose(data.train.inputs().numpy(), (x[train[split]] - mean) / sd, atol=1e-5)
    np.testing.assert_allclose(data.test.inputs().numpy(), (x[test[split]] - mean) / sd, atol=1e-5)
    assert data.train.y.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    own = data.target.own_units(data.test.y)
    np.testing.assert_allclose(own[:, 0].numpy(), y[test[split]], rtol=1e-5)


def test_new_rows_are_prepared_alike(folder: Path) -> None:
    made = table()
    write_npz(folder / "uci_regression.npz", **made)
    data = bnn.data.load("uci/yacht", split=3)
    assert data.test is not None
    assert data.preparation is not None
    np.testing.assert_allclose(
        data.preparation(made["yacht__x"][made["yacht__test"][3]]).numpy(), data.test.inputs().numpy(), atol=1e-6
    )


def test_first_and_validation(folder: Path) -> None:
    write_npz(folder / "uci_regression.npz", **table())
    data = bnn.data.load("uci/yacht", first=5, validation=0.4)
    assert data.test is not None
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (3, 2, 3)


@pytest.mark.parametrize("name", UCI_SETS)
def test_every_set_has_a_name_in_the_collection(folder: Path, name: str) -> None:
    write_npz(folder / "uci_regression.npz", **table(UCI_SETS[name].replace("-", "_")))
    assert len(bnn.data.load(f"uci/{name}").train) == 9


@pytest.mark.parametrize(
    ("name", "split", "last"), [("yacht", 20, 19), ("yacht", -1, 19), ("protein", 5, 4), ("yacht", 1.0, 19)]
)
def test_no_such_split(name: str, split: Any, last: int) -> None:
    with pytest.raises(ValueError, match=f"uci/{name} has the splits 0 to {last}, got split={split}"):
        bnn.data.load(f"uci/{name}", split=split)


def test_missing_files_are_listed(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"uci/yacht(?s:.*)uci_regression\.npz(?s:.*)index_train_2\.txt"):
        bnn.data.load("uci/yacht", split=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"yacht__train": np.full((20, 9), 12)}, "rows outside of the 12"),
        ({"yacht__test": table()["yacht__train"][:, :3]}, "a row twice, or in both parts"),
        ({"yacht__x": np.full((ROWS, 3), np.nan)}, "not finite"),
        ({"yacht__y": np.zeros((ROWS, 2))}, r"expected x \(N, D\) and y \(N, 1\)"),
        ({"yacht__train": np.zeros((2, 9), int)}, "out of bounds"),
    ],
)
def test_a_damaged_collection_is_named(folder: Path, change: dict[str, Any], message: str) -> None:
    write_npz(folder / "uci_regression.npz", **table() | change)
    with pytest.raises(ValueError, match=rf"uci_regression\.npz is damaged.*{message}"):
        bnn.data.load("uci/yacht", split=4)


def test_a_damaged_text_is_named(folder: Path) -> None:
    write_texts(folder / "uci" / "yacht", table(), 0)
    written(folder / "uci" / "yacht" / "index_train_0.txt", b"1\n2.5\n")
    with pytest.raises(ValueError, match=r"index_train_0\.txt is damaged.*whole number"):
        bnn.data.load("uci/yacht")
    written(folder / "uci" / "yacht" / "data.txt", b"1 2 3\n4 five 6\n")
    with pytest.raises(ValueError, match=r"data\.txt is damaged.*five"):
        bnn.data.load("uci/yacht")
