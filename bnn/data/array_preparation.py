"""Arrays as inputs of a network: read from wherever they are (nothing is unpickled), scaled by the training part."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bnn._common.errors import ArgumentError
from bnn._common.records import stored_fields, stored_number
from bnn.data.images import ImageScaling
from bnn.data.tables.table import is_path

Array = npt.NDArray[Any]
LAYOUTS = ["NCHW", "NHWC", "NHW"]
CHANNELS = (1, 3)  # that an image may have where the layout is not given


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


@dataclass(frozen=True)
class ScaledInputs:
    """Scales numbers (N, D, ...) to (x - mean) / sd, with a mean and an sd for each of D columns or channels.

    Args:
        shape: of one input, (D, ...).
        mean, sd: (D,); where all are 0 and 1 nothing is changed.
    """

    kind: ClassVar[str] = "arrays"

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @classmethod
    def learned(cls, x: Array) -> ScaledInputs:
        """Mean and sd of the training part (N, D, ...); a column that never changes gets an sd of 1.

        >>> ScaledInputs.learned(np.array([[1.0, 5.0], [3.0, 5.0]]))
        ScaledInputs(shape=(2,), mean=(2.0, 5.0), sd=(1.0, 1.0))
        """
        columns = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)
        low, high = columns.min(1), columns.max(1)
        mean, sd = columns.mean(1), columns.std(1)
        if not np.isfinite([mean, sd]).all():
            raise ValueError("the numbers in x are too large to scale; divide them first")
        return cls(x.shape[1:], tuple(mean.tolist()), tuple(np.where((low == high) | (sd == 0), 1.0, sd).tolist()))

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> ScaledInputs:
        """No scaling at all."""
        return cls(shape, (0.0,) * shape[0], (1.0,) * shape[0])

    def __call__(self, raw: Any) -> Tensor:
        """Inputs (N, D, ...) float32 of an array, a tensor, or the path of a .npy file."""
        x = array_of(raw, ("x", "x_test"))
        if x.shape[1:] != self.shape or x.ndim == 0:
            raise ValueError(f"x must have the shape (N, {', '.join(map(str, self.shape))}), got {x.shape}")
        refuse_bad(x, "x")
        around = (-1, *[1] * (len(self.shape) - 1))
        scaled = (x.astype(np.float64) - np.reshape(self.mean, around)) / np.reshape(self.sd, around)
        with np.errstate(over="ignore"):
            small = scaled.astype(np.float32)
        refuse_bad(small, "x (as float32)")
        return torch.from_numpy(small)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "shape": list(self.shape), "mean": list(self.mean), "sd": list(self.sd)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ScaledInputs:
        """As `to_dict` stored it."""
        read = stored_fields(stored, "scaling of arrays", shape=list, mean=list, sd=list)
        mean = tuple(stored_number(one, "mean") for one in read["mean"])
        sd = tuple(stored_number(one, "sd", positive=True) for one in read["sd"])
        if not read["shape"] or not len(mean) == len(sd) == read["shape"][0]:
            raise ValueError(f"a scaling of shape {read['shape']} needs as many means and sds as its first number")
        return cls(tuple(map(int, read["shape"])), mean, sd)


@dataclass(frozen=True)
class ArrayImages:
    """Images in arrays, scaled by channel.

    Args:
        layout: of new arrays: "NCHW", "NHWC" or "NHW".
        shape: of one prepared image, (C, H, W).
    """

    kind: ClassVar[str] = "array_images"

    scaling: ImageScaling
    layout: str
    shape: tuple[int, ...]

    def __call__(self, raw: Any) -> Tensor:
        """Inputs (N, C, H, W) of uint8 images, an array, a tensor, or the path of a .npy file."""
        x = array_of(raw, ("x", "x_test"))
        images = channels_first(x, self.layout)
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(f"expected images {self.shape} (C, H, W), got {tuple(images.shape[1:])}")
        return self.scaling(images)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        scaling = self.scaling.to_dict()
        return {"kind": self.kind, "scaling": scaling, "layout": self.layout, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ArrayImages:
        """As `to_dict` stored it."""
        read = stored_fields(stored, "preparation of image arrays", scaling=dict, layout=str, shape=list)
        return cls(ImageScaling.from_dict(read["scaling"]), read["layout"], tuple(map(int, read["shape"])))


def image_layout(x: Array, given: str | None) -> str:
    """Where the channels of images (N, H, W), (N, C, H, W) or (N, H, W, C) are: as `given`, or found out."""
    if given is not None and given not in LAYOUTS:
        raise ValueError(f"layout must be one of {LAYOUTS}, got {given!r}")
    if given is None and x.ndim == 3:
        return "NHW"
    first, last = x.shape[1] in CHANNELS, x.shape[-1] in CHANNELS
    if given is None and first == last:
        raise ArgumentError(
            f"images of shape {x.shape} could have their channels first or last: say layout='NCHW' or layout='NHWC'",
            "layout",
        )
    return given or ("NCHW" if first else "NHWC")


def channels_first(x: Array, layout: str) -> Tensor:
    """uint8 images of a layout as a tensor (N, C, H, W)."""
    if x.dtype != np.uint8 or x.ndim != len(layout):
        raise ValueError(f"expected images {layout} of uint8, 0 to 255; got {x.dtype} of shape {x.shape}")
    if layout == "NHW":
        x = x[:, None]
    return torch.from_numpy(np.array(np.moveaxis(x, 3, 1) if layout == "NHWC" else x, order="C"))


def refuse_bad(array: Array, what: str) -> None:
    """An error that names the first place that is not a finite number, or says that there are no numbers."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must hold numbers, got {array.dtype}; bnn.data.csv reads columns of text")
    bad = first_bad(array, what)
    if bad is not None:
        raise ValueError(f"{bad}; fill in or leave out such inputs (bnn.data.csv fills in missing values)")
