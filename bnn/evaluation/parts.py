"""Which inputs are scored: the forms in which `bnn.evaluate` takes data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bnn.data.dataset import Data, Part


def scored_part(data: Any, batch_size: int, what: str = "data") -> Part:
    """The part that is scored, with its targets: the test part of a `Data`, or all of anything else."""
    if isinstance(data, Data):
        if data.test is None:
            raise ValueError(f"{data.name} has no test part: pass a part itself, such as its .validation or .train")
        data = data.test
    part = data if isinstance(data, Part) else _gathered(data, batch_size, what)
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


def _gathered(data: Any, batch_size: int, what: str) -> Part:
    """A pair of tensors or arrays, or all batches of a loader or data set, in memory."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return Part(as_tensor(data[0], "x"), as_tensor(data[1], "y"))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=batch_size)
    if not isinstance(data, DataLoader):
        raise TypeError(
            f"{what} must be a bnn.data.Data, a Part, a pair (x, y) of tensors or arrays, a torch Dataset with a "
            f"length, or a DataLoader; got {type(data).__name__}"
        )
    batches = list(data)
    if any(not isinstance(b, tuple | list) or len(b) != 2 or not isinstance(b[0], Tensor) for b in batches):
        raise TypeError("a batch must be a pair (inputs, targets) of tensors; for other inputs use bnn.predict")
    if not batches:
        raise ValueError(f"{what} is empty: there is nothing to evaluate")
    return Part(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor, or an array of numbers as one; float64 arrays become torch's default type."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}")
    tensor = torch.as_tensor(np.ascontiguousarray(array))
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
