"""Inputs as they are given: files or objects of a program, each with a name that its row of the answer carries."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from bnn._common.text import listed, nearest
from bnn.data.array_preparation import Array, array_of
from bnn.data.dataset import Part
from bnn.data.image_files import is_image

Kind = Literal["folder", "image", "array", "table", "other"]
NAMES = ("x", "x_test")  # of the inputs in an .npz file
ARRAYS, TABLES = (".npy", ".npz"), (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Inputs:
    """N inputs of a network.

    Args:
        names: of the inputs (N,): files as given, or lines and rows.
        part: the inputs, with what prepares them.
        kept: columns of the tables they came from, {name: N cells}.
        source: what they came from, for messages.
    """

    names: Sequence[str]
    part: Part
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = "the inputs"

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Given:
    """One thing that holds inputs.

    Args:
        value: a path, rows of a table (a list of dicts or a dict of columns), or an array.
        kind: what it seems to be: of a path by its ending.
        shown: what it is, for messages.
        path: whether it is a path.
    """

    value: Any
    kind: Kind
    shown: str
    path: bool = True

    def names(self, several: bool, word: str, numbers: Sequence[int]) -> list[str]:
        """A name for each row: "line 7"; with the file's name before it where there are several files.

        >>> Given("a.csv", "table", "a.csv, a table").names(True, "line", [2, 3])
        ['a.csv, line 2', 'a.csv, line 3']
        """
        before = f"{self.value}, " if several else ""
        return [f"{before}{word} {number}" for number in numbers]

    def refused(self, takes: str) -> ValueError:
        """The error of giving a run what it does not take."""
        return ValueError(f"{takes}; got {self.shown}")


def given(rows: Any) -> list[Given]:
    """What `rows` are: one path or several, or one object that holds all inputs.

    Raises:
        FileNotFoundError: a path leads nowhere.
        TypeError: nothing that could hold inputs.
        ValueError: there is none.
    """
    if isinstance(rows, str | os.PathLike):
        return [_file(rows)]
    if isinstance(rows, list | tuple) and not rows:
        raise ValueError("there is nothing to predict: give at least one file, folder or row")
    if isinstance(rows, list | tuple) and all(isinstance(one, str | os.PathLike) for one in rows):
        return [_file(one) for one in rows]
    if isinstance(rows, Tensor | np.ndarray):
        array = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else rows
        return [Given(array, "array", f"an array of shape {tuple(array.shape)}", path=False)]
    if _is_frame(rows):
        return [Given(_columns(rows), "table", "a DataFrame", path=False)]
    if isinstance(rows, Mapping):
        return [Given(rows, "table", "a dict of columns", path=False)]
    if isinstance(rows, list | tuple) and all(isinstance(one, Mapping) for one in rows):
        return [Given(list(rows), "table", "a list of dicts", path=False)]
    raise TypeError(
        "expected a path or several, a list of dicts (one per row), a dict of columns, a DataFrame, an array or a "
        f"tensor; got a {type(rows).__name__}"
    )


def loaded(one: Given) -> Array:
    """The array of inputs in a file or of a program, of at least one."""
    array = array_of(one.value, NAMES)
    if array.ndim == 0 or len(array) == 0:
        what = f"{one.value} holds no input: its array" if one.path else "there is nothing to predict: the array"
        raise ValueError(f"{what} has the shape {array.shape}")
    return array


def source_of(things: Sequence[Given]) -> str:
    """What the inputs came from, for messages."""
    return listed(str(one.value) if one.path else one.shown for one in things)


def _file(path: str | os.PathLike[str]) -> Given:
    """What a path seems to be, by its ending.

    >>> _file("nowhere/rows.csv")
    Traceback (most recent call last):
    FileNotFoundError: there is no file nowhere/rows.csv
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        parent, name = os.path.split(os.path.normpath(path))
        beside = os.listdir(parent or os.curdir) if os.path.isdir(parent or os.curdir) else []
        raise FileNotFoundError(f"there is no file {path or repr(path)}{nearest(name, beside)}")
    if os.path.isdir(path):
        return Given(path, "folder", f"{path}, a folder")
    if is_image(path):
        return Given(path, "image", f"{path}, an image")
    ending = os.path.splitext(path)[1].lower()
    if ending in ARRAYS:
        return Given(path, "array", f"{path}, a file of arrays")
    return Given(path, "table", f"{path}, a table") if ending in TABLES else Given(path, "other", path)


def _is_frame(rows: Any) -> bool:
    """Whether these are a pandas DataFrame; where pandas was never imported they are not."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.DataFrame)


def _columns(frame: Any) -> dict[str, list[Any]]:
    names = list(frame.columns)
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"the DataFrame has the column {repeated[0]!r} more than once: rename or drop one")
    return {str(name): frame[name].tolist() for name in names}
