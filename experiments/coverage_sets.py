"""The tables on which coverage is measured, each as the two CSV files that a user would train and test on.

UCI sets come with their standard splits (90 % to train on); the others are split at random, 75 % to train on, where the
number of the split is the seed. The two made sets are drawn anew for every split, from the generators below.
"""

from __future__ import annotations

import csv
import io
import lzma
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn.data.named_sets.uci import UCI_SETS, read_uci
from experiments.data import data_file

TEST = 0.25
MADE = 2000  # rows of a made set

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A table with the rows of its two parts; `flags` are further ones of `bayesianize train`."""

    columns: list[str]
    rows: list[list[str]]
    target: str
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    flags: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
        """The files of the two parts, each with the names of the columns in its first line."""
        paths = folder / "train.csv", folder / "test.csv"
        for path, part in zip(paths, (self.train, self.test), strict=True):
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([self.columns, *(self.rows[i] for i in part)])
        return paths


def load(name: str, split: int) -> Table:
    """A table by its name, a key of `SETS`, with one of its splits, counted from 0."""
    if name not in SETS:
        raise ValueError(f"unknown table {name!r}; expected one of {list(SETS)}")
    return SETS[name](split)


def uci(name: str, split: int) -> Table:
    """One of the UCI sets with a standard split."""
    read = read_uci(name, split)
    return of_numbers(read.x, read.y[:, 0], train=read.train, test=read.test)


def california(split: int) -> Table:
    """California housing as it is published: median house values by block, with a category and missing values."""
    with lzma.open(data_file("california_housing.csv.xz")) as file:
        columns, *rows = csv.reader(io.StringIO(file.read().decode("utf-8")))
    return Table(columns, rows, "median_house_value", *at_random(len(rows), split))


def diabetes(split: int) -> Table:
    """Progression of diabetes in 442 patients, of scikit-learn, unscaled."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return of_numbers(x, y, *at_random(len(y), split))


def friedman(split: int) -> Table:
    """y = 10 sin(pi x0 x1) + 20 (x2 - 1/2)^2 + 10 x3 + 5 x4 + e, e ~ N(0, 1), ten inputs uniform on [0, 1]."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(MADE, n_features=10, noise=1.0, random_state=split)
    return of_numbers(x, y, *at_random(len(y), split))


def positive(split: int) -> Table:
    """y = exp(2 + sin(pi x0) + x1 - x2 x3 + (0.1 + 0.5 x4) e), e ~ N(0, 1), six inputs uniform on [0, 1].

    Above zero and skewed, its noise in proportion to its median and six times as wide at x4 = 1 as at x4 = 0; x5 says
    nothing.
    """
    random = np.random.default_rng(split)
    x = random.uniform(size=(MADE, 6))
    middle = 2 + np.sin(np.pi * x[:, 0]) + x[:, 1] - x[:, 2] * x[:, 3]
    y = np.exp(middle + (0.1 + 0.5 * x[:, 4]) * random.standard_normal(MADE))
    return of_numbers(x, y, *at_random(MADE, split))


def positive_log(split: int) -> Table:
    """The same, trained on with `--positive`."""
    return replace(positive(split), flags={"positive": True})


def of_numbers(x: Floats, y: Floats, train: NDArray[np.int64], test: NDArray[np.int64]) -> Table:
    """A table of numbers (N, D) and (N,), as text that reads back to the same."""
    columns = [*(f"x{i}" for i in range(x.shape[1])), "y"]
    rows = [list(map(repr, row)) for row in np.column_stack([x, y]).tolist()]
    return Table(columns, rows, "y", train, test)


def at_random(count: int, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, and a quarter to test on.

    >>> train, test = at_random(100, split=3)
    >>> len(train), len(test), len(set(train) | set(test))
    (75, 25, 100)
    """
    order = np.random.default_rng(split).permutation(count)
    aside = round(TEST * count)
    return np.sort(order[aside:]), np.sort(order[:aside])


def _uci(name: str) -> Callable[[int], Table]:
    return lambda split: uci(name, split)


SETS: dict[str, Callable[[int], Table]] = {name: _uci(name) for name in UCI_SETS} | {
    "california": california,
    "diabetes": diabetes,
    "friedman": friedman,
    "positive": positive,
    "positive-log": positive_log,
}
