"""What an evaluation is going to predict: the forms in which it takes data and out-of-distribution inputs."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn import likelihoods
from bnn.data import names
from bnn.data import ood as named_ood
from bnn.data.dataset import Data, Part, each
from bnn.data.forms import as_tensor, gathered
from bnn.data.image_files import ENDINGS, check_memory, decode, files_below
from bnn.data.named_sets.load import check_name
from bnn.data.ood_sets import KINDS as SYNTHETIC
from bnn.data.ood_sets import synthetic_ood
from bnn.evaluation import corruptions as corrupted

BATCH = 500  # in which a data set is read

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Task:
    """What is to be predicted: everything is loaded and checked."""

    name: str
    kind: str | None  # classification or regression; None: what the likelihood says
    classes: tuple[str, ...]
    part: Part
    validation: Part | None
    ood: dict[str, Part]
    corruptions: list[tuple[str, int]]
    targets: tuple[str, ...] = ()  # names of real targets

    @property
    def inputs(self) -> int:
        """Predictions to make."""
        others = [*self.ood.values(), *([] if self.validation is None else [self.validation])]
        return (1 + len(self.corruptions)) * len(self.part) + sum(map(len, others))


def task_of(data: Any, ood: Any, corruptions: Any, validation: Any, batch_size: int) -> Task:
    """Everything checked, and loaded, before the first prediction."""
    known = isinstance(data, Data)
    corrupted.chosen(corruptions)  # mistakes show before anything is loaded
    part = scored_part(data, batch_size)
    chosen = corrupted.chosen(corruptions, corrupted.kinds_for(part))
    if chosen:
        corrupted.check_images(part, chosen)
    real = known and data.task == "regression"
    held_out = None if real and validation is None else validation_part(validation, data, batch_size)
    name, kind, classes = (data.name, data.task, data.classes) if known else ("data", None, ())
    targets = data.targets if real else ()
    return Task(name, kind, classes, part, held_out, ood_parts(ood, data, part), chosen, targets)


def likelihood_of(likelihood: Any, task: Task) -> Any:
    """The likelihood object: the one asked for, or that of the task."""
    assert task.part.y is not None
    real = task.kind == "regression" or (task.kind is None and task.part.y.is_floating_point())
    usual = likelihoods.for_task(None, "regression" if real else "classification")
    found = usual if likelihood is None else likelihoods.get(likelihood)
    if (likelihood is None or isinstance(likelihood, str)) and likelihoods.about(found).learns:
        raise ValueError(
            "real targets need the noise that was trained: pass likelihood=history.likelihood (what bnn.fit returns), "
            'elbo.likelihood, bnn.likelihoods.Gaussian(sd=...), or "heteroscedastic"'
        )
    return found


def scored_part(data: Any, batch_size: int, what: str = "data") -> Part:
    """The part that is scored, with its targets: the test part of a `Data`, or all of anything else."""
    if isinstance(data, Data):
        if data.test is None:
            raise ValueError(f"{data.name} has no test part: pass a part itself, such as its .validation or .train")
        data = data.test
    part = gathered(data, batch_size, what)
    if part.y is None:
        raise ValueError(f"{what} has no targets to compare with; inputs without targets can only be ood=")
    if len(part) == 0:
        raise ValueError(f"{what} is empty: there is nothing to evaluate")
    return part


def validation_part(validation: Any, data: Any, batch_size: int) -> Part | None:
    """The part the temperature is learned on: `validation`, else the validation part of a `Data`, else None."""
    if validation is None:
        return data.validation if isinstance(data, Data) else None
    if isinstance(validation, Data):
        if validation.validation is None:
            raise ValueError(f"{validation.name} has no validation part: pass a Part or a pair (x, y)")
        validation = validation.validation
    return scored_part(validation, batch_size, "validation")


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
