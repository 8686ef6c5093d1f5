"""Inputs from elsewhere: the forms in which `bnn.evaluate` takes them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn.data import names
from bnn.data import ood as named_ood
from bnn.data.dataset import Data, Part
from bnn.data.image_folders.folder_preparation import FolderPreparation
from bnn.data.image_folders.image_files import decode, files_below
from bnn.data.image_folders.memory import check_memory
from bnn.evaluation.parts import as_tensor

Path = str | os.PathLike[str]


def ood_parts(ood: Any, data: Any, like: Part) -> dict[str, Part]:
    """Inputs from elsewhere by name, checked to have the shape of the scored inputs."""
    if ood is None:
        return {}
    found = {name: _part(name, value, data, like) for name, value in _named(ood).items()}
    if not found:
        raise ValueError("ood is empty: name a data set, or leave it out")
    expected = tuple(like.inputs(slice(0, 1)).shape[1:])
    for name, part in found.items():
        if len(part) == 0:
            raise ValueError(f"ood {name!r} is empty")
        got = tuple(part.inputs(slice(0, 1)).shape[1:])
        if got != expected:
            raise ValueError(f"inputs of ood {name!r} have shape {got}, expected {expected} as the data's have")
    return found


def _named(ood: Any) -> dict[str, Any]:
    if isinstance(ood, Mapping):
        return {str(name): value for name, value in ood.items()}
    if isinstance(ood, Path):
        return {os.fspath(ood): ood}
    if isinstance(ood, Data):
        return {ood.name: ood}
    if isinstance(ood, list | tuple) and all(isinstance(one, Path) for one in ood):
        return {os.fspath(one): one for one in ood}
    if isinstance(ood, list | tuple):
        raise TypeError("a list in ood= holds names or folders; give others a name: ood={'mine': part, ...}")
    return {"ood": ood}


def _part(name: str, value: Any, data: Any, like: Part) -> Part:
    if isinstance(value, Data):
        return value.train if value.test is None else value.test
    if isinstance(value, Part):
        return value
    if isinstance(value, Path):
        return _stored(value, data, like)
    if isinstance(value, Tensor | np.ndarray):
        x = as_tensor(value, f"ood {name!r}")
        stored = x.dtype == torch.uint8 and like.x.dtype == torch.uint8  # as the data's, so they are prepared alike
        return Part(x, None, like.prepare if stored else None)
    raise TypeError(
        f"ood {name!r} must be the name of a data set, a folder of images, a Data, a Part, or a tensor of inputs; got "
        f"{type(value).__name__}"
    )


def _stored(value: Path, data: Any, like: Part) -> Part:
    """A data set by its name, or else the images of a folder."""
    known = isinstance(value, str) and value in names()
    if not known and os.path.isdir(value):
        return _images(pathlib.Path(value), data, like)
    if known and not isinstance(data, Data):
        raise TypeError(
            f"ood {value!r} by name is made like a bnn.data.Data, and data is a {type(data).__name__}; pass a Part, or "
            "a tensor of inputs"
        )
    if known:
        return named_ood(str(value), like=data)
    raise ValueError(
        f"ood {os.fspath(value)!r} is neither a folder of images nor the name of a data set{_meant(value)}; the names "
        f"are {', '.join(names())}"
    )


def _meant(value: Path) -> str:
    close = difflib.get_close_matches(os.fspath(value), names(), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _images(folder: pathlib.Path, data: Any, like: Part) -> Part:
    """All images of a folder and those below it, in the shape and with the scaling of the data's."""
    preparation = data.preparation if isinstance(data, Data) else None
    if isinstance(preparation, FolderPreparation):
        return Part(preparation(preparation.files(folder)))
    if like.x.dtype != torch.uint8 or like.x.ndim != 4 or like.x.shape[1] not in (1, 3):
        raise ValueError(
            f"ood {os.fspath(folder)!r} is a folder of images, and the data are no images as they are stored, uint8 "
            f"(N, 1 or 3, H, W), but {like.x.dtype} {tuple(like.x.shape)}; pass a tensor of inputs"
        )
    channels, height, width = like.x.shape[1:]
    files = files_below(folder)[0]
    if not files:
        raise ValueError(f"there are no images in {os.fspath(folder)!r}")
    check_memory((len(files), channels, height, width))
    x = torch.empty(len(files), channels, height, width, dtype=torch.uint8)
    for image, file in zip(x, files, strict=True):
        image.copy_(torch.from_numpy(decode(file, (height, width), channels == 1)))
    return Part(x, None, like.prepare)
