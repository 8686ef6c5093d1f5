"""The UCI regression sets on which Bayesian networks are compared, with their standard splits."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnn.data.array_sets import arrays
from bnn.data.dataset import Data
from bnn.data.named_sets.formats import member, reading
from bnn.data.named_sets.store import Form, locate

# As `bnn.data.load("uci/<name>")` calls them, and as the collection with the standard splits does.
UCI_SETS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


class SplitTable(NamedTuple):
    """A table in its own units, and the rows of the two parts of one split."""

    x: NDArray[np.float64]  # (N, D)
    y: NDArray[np.float64]  # (N, 1)
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def uci(
    name: str,
    first: int | None = None,
    download: bool = False,
    split: int = 0,
    guarantee: float | int | None = None,
    seed: int = 0,
    positive: bool = False,
) -> Data:
    """One of `UCI_SETS` with its split number `split`; inputs and targets are scaled by the split's training part."""
    rows = read_uci(name, split, download)
    train, test = rows.train[:first], rows.test[:first]
    pair = (rows.x[test], rows.y[test])
    more: dict[str, Any] = {"guarantee": guarantee, "seed": seed, "positive": positive, "name": f"uci/{name}"}
    return arrays(rows.x[train], rows.y[train], task="regression", test=pair, **more)


def splits(name: str) -> int:
    """How many standard splits a set has: 20, and 5 for protein."""
    return 5 if name == "protein" else 20


def read_uci(name: str, split: int, download: bool = False) -> SplitTable:
    """The rows of one of `UCI_SETS` and its split number `split`, counted from 0."""
    if isinstance(split, bool) or not isinstance(split, int) or not 0 <= split < splits(name):
        raise ValueError(f"uci/{name} has the splits 0 to {splits(name) - 1}, got split={split!r}")
    form, paths = locate(f"uci/{name}, split {split},", _forms(name, split), download)
    rows = form.read(paths)
    _check(rows, paths[0])
    return rows


def _forms(name: str, split: int) -> list[Form]:
    full = UCI_SETS[name]
    arrays = functools.partial(_arrays, name=full.replace("-", "_"), split=split)
    files = [
        "data.txt",
        "index_features.txt",
        "index_target.txt",
        f"index_train_{split}.txt",
        f"index_test_{split}.txt",
    ]
    places = [
        f"{top}/{one}{below}" for top in ("uci", "UCI_Datasets") for one in (name, full) for below in ("", "/data")
    ]
    texts = [Form(_texts, tuple(f"{place}/{file}" for file in files)) for place in dict.fromkeys(places)]
    return [Form(arrays, ("uci_regression.npz",)), *texts]


def _arrays(paths: Sequence[Path], name: str, split: int) -> SplitTable:
    """From `uci_regression.npz`, which holds <name>__x (N, D), __y (N,), __train and __test (splits, n)."""
    with reading(paths[0]), zipfile.ZipFile(paths[0]) as archive:
        x, y, train, test = (member(archive, f"{name}__{one}") for one in ("x", "y", "train", "test"))
        return SplitTable(x, y.reshape(len(x), -1), train[split].astype(np.int64), test[split].astype(np.int64))


def _texts(paths: Sequence[Path]) -> SplitTable:
    """From text files: the table, the columns that are features and target, the rows of the two parts."""
    with reading(paths[0]):
        table = np.loadtxt(paths[0], ndmin=2)
    found: list[NDArray[Any]] = []
    for path in paths[1:]:
        with reading(path):
            numbers = np.loadtxt(path, ndmin=1)
            if numbers.ndim != 1 or (numbers != np.floor(numbers)).any():
                raise ValueError("expected one whole number per line")
            found.append(numbers.astype(np.int64))
    features, target, train, test = found
    with reading(paths[1]):
        if min(features.min(), target.min()) < 0:
            raise ValueError("a column has a negative number")
        return SplitTable(table[:, features], table[:, target], train, test)


def _check(rows: SplitTable, path: Path) -> None:
    """Raises ValueError, with the name of the file, unless the table is one and the split divides its rows."""
    with reading(path):
        if rows.x.ndim != 2 or rows.y.shape != (len(rows.x), 1) or rows.x.dtype.kind != "f" or rows.y.dtype.kind != "f":
            raise ValueError(f"expected x (N, D) and y (N, 1), got {rows.x.shape} and {rows.y.shape}")
        if not (np.isfinite(rows.x).all() and np.isfinite(rows.y).all()):
            raise ValueError("it has values that are not finite")
        both = np.concatenate([rows.train, rows.test])
        if len(rows.train) == 0 or len(rows.test) == 0 or both.min() < 0 or both.max() >= len(rows.x):
            raise ValueError(f"its split names rows outside of the {len(rows.x)} there are, or none")
        if len(np.unique(both)) != len(both):
            raise ValueError("its split has a row twice, or in both parts")
