"""Out-of-distribution inputs: the forms in which `bnn.evaluate` takes them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn.data import names
from bnn.data import ood as named_ood
from bnn.data.dataset import Data, Part, each
from bnn.data.forms import as_tensor, gathered
from bnn.data.image_folders.image_files import ENDINGS, check_memory, decode, files_below
from bnn.data.named_sets.load import check_name
from bnn.data.ood_sets import KINDS as SYNTHETIC
from bnn.data.ood_sets import synthetic_ood

BATCH = 500  # in which a data set is read

Path = str | os.PathLike[str]


def ood_parts(ood: Any, data: Any, like: Part) -> dict[str, Part]:
    """Out-of-distribution inputs by name, checked to have the shape of the scored inputs."""
    if ood is None:
        return {}
    found = {name: _part(name, value, data, like) for name, value in _named(ood).items()}
    if not found:
        raise ValueError("ood is empty: name a data set, or leave it out")
    expected = _shape(like)
    for name, part in found.items():
        if len(part) == 0:
            raise ValueError(f"ood {name!r} is empty")
        got = _shape(part)
        if got != expected:
            raise ValueError(f"inputs of ood {name!r} have shape {got}, expected {expected} as the data's have")
    return found


def _shape(part: Part) -> Any:
    """Of one prepared input, nested as the inputs are."""
    return each(part.inputs(slice(0, 1)), lambda x: tuple(x.shape[1:]))


def _named(ood: Any) -> dict[str, Any]:
    if isinstance(ood, Mapping):
        return {str(name): value for name, value in ood.items()}
    if isinstance(ood, str | os.PathLike):
        return {os.fspath(ood): ood}
    if isinstance(ood, Data):
        return {ood.name: ood}
    if isinstance(ood, list | tuple) and all(isinstance(one, str | os.PathLike) for one in ood):
        return {os.fspath(one): one for one in ood}
    if isinstance(ood, list | tuple):
        raise TypeError("a list in ood= holds names or folders; give others a name: ood={'mine': part, ...}")
    return {"ood": ood}


def _part(name: str, value: Any, data: Any, like: Part) -> Part:
    if isinstance(value, Data):
        part = value.train if value.test is None else value.test
        return replace(part, prepare=like.prepare) if _stored_alike(part.x, like) else part
    if isinstance(value, Part):
        return value
    if isinstance(value, str | os.PathLike):
        return _stored(value, data, like)
    if isinstance(value, Tensor | np.ndarray):
        x = as_tensor(value, f"ood {name!r}")
        return Part(x, None, like.prepare if _stored_alike(x, like) else None)
    return replace(gathered(value, BATCH, f"ood {name!r}, if no name, folder or tensor of inputs,"), y=None)


def _stored_alike(x: Any, like: Part) -> bool:
    """Whether these are images as they are stored, as the data's are: then they are prepared as the data's."""
    return all(isinstance(one, Tensor) and one.dtype == torch.uint8 for one in (x, like.x))


def _stored(value: Path, data: Any, like: Part) -> Part:
    """Synthetic inputs or a data set by name, or else the images of a folder."""
    name = os.fspath(value)
    if name in SYNTHETIC:
        return synthetic_ood(name, like)
    if name not in names() and os.path.isdir(name):
        return _images(pathlib.Path(name), like)
    try:
        check_name(name)
    except ValueError as error:
        made = f"synthetic inputs are {', '.join(SYNTHETIC)}"
        raise ValueError(
            f"ood {name!r} is neither a folder of images nor the name of a data set: {error}; {made}"
        ) from None
    if not isinstance(data, Data):
        raise TypeError(
            f"ood {name!r} by name is made like a bnn.data.Data, and data is a {type(data).__name__}; pass a Part, or "
            "a tensor of inputs"
        )
    return named_ood(name, like=data)


def _images(folder: pathlib.Path, like: Part) -> Part:
    """All images of a folder and those below it, sorted, in the shape and with the scaling of the data's."""
    shape = tuple(like.x.shape[1:]) if isinstance(like.x, Tensor) else ()
    if not isinstance(like.x, Tensor) or like.x.dtype != torch.uint8 or len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"ood {str(folder)!r} is a folder of images, and the data are no images as they are stored, uint8 "
            f"(N, 1 or 3, H, W), but {like.x.dtype} {tuple(like.x.shape)}; pass a tensor of inputs"
        )
    files = files_below(folder)[0]
    if not files:
        raise ValueError(f"ood {str(folder)!r} is a folder without images: they end in {', '.join(ENDINGS)}")
    check_memory((len(files), *shape))
    x = torch.empty(len(files), *shape, dtype=torch.uint8)
    for image, file in zip(x, files, strict=True):
        image.copy_(torch.from_numpy(decode(file, shape[1:], shape[0] == 1)))
    return Part(x, None, like.prepare)
