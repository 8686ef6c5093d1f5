"""Arrays from wherever they are: NumPy, torch, .npy and .npz files; nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bnn.data.tables.table import is_path

Array = npt.NDArray[Any]


def array_of(value: Any, names: Sequence[str]) -> Array:
    """`value` as an array: an array, a tensor, a list, or the path of a .npy or .npz file.

    Args:
        names: of the array in an .npz file, the first that is there; a file with one array gives that.
    """
    if is_path(value):
        return _loaded(value, names)
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray((value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy())
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{names[0]} must be an array, got a {type(value).__name__} ({error})") from None
    return texts_of(array, names[0]) if array.dtype == object else array


def array_names(path: Any) -> list[str]:
    """The names of the arrays in an .npz file that holds inputs and targets."""
    if not is_path(path) or not os.fspath(path).endswith(".npz"):
        raise TypeError("y is missing: give x and y, or the path of an .npz file that holds both")
    names: list[str] = _loaded(path, None)
    if not {"y", "y_train"} & set(names):
        raise KeyError(f"{os.fspath(path)} has no array named 'y' or 'y_train'; it has {names}")
    return names


def texts_of(array: Array, what: str) -> Array:
    """An array of Python objects as text, if that is what they are."""
    if array.size and all(isinstance(one, str) for one in array.flat):
        return array.astype(str)
    kinds = sorted({type(one).__name__ for one in array.flat})
    raise TypeError(
        f"{what} is an array of Python objects ({', '.join(kinds)}); numbers need a type of their own: "
        f"np.asarray({what}, dtype=float)"
    )


def first_bad(array: Array, what: str) -> str | None:
    """The first place that is not a finite number, as "x[3, 2] is nan"; None if there is none."""
    if array.dtype.kind != "f":
        return None
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    place = np.unravel_index(int(bad.argmax()), array.shape)
    return f"{what}[{', '.join(map(str, place))}] is {array[place]}"


def _loaded(path: str | os.PathLike[str], names: Sequence[str] | None) -> Any:
    """The array of these names, or (None) the names of all."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            if names is None:
                return list(found.files)
            return found if isinstance(found, np.ndarray) else _of_several(path, found, names)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if "allow_pickle" in str(error) and "Object arrays" in str(error):
            reason = "it holds Python objects, which are not read; save numbers, as np.save(path, x.astype(float))"
        else:
            reason = f"expected a .npy or .npz file ({error})"
        raise ValueError(f"cannot read {os.fspath(path)}: {reason}") from None


def _of_several(path: str | os.PathLike[str], found: Any, names: Sequence[str]) -> Array:
    for name in [*names, *(found.files if len(found.files) == 1 else [])]:
        if name in found.files:
            return np.asarray(found[name])
    raise KeyError(f"{os.fspath(path)} has no array named {' or '.join(map(repr, names))}; it has {found.files}")
