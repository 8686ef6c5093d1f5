"""What data are to everything that takes them: `bnn.fit`, `bnn.evaluate`, `bnn.refresh_batchnorm_` and all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bnn.data.dataset import Part, each, tensors_in

FORMS = "a bnn.data.Data, a Part, a pair (x, y) of tensors or arrays, a torch Dataset with a length, or a DataLoader"


def taken(data: Any, what: str = "data") -> Any:
    """`data` as a `Part`, a torch `Dataset` with a length, or a `DataLoader`: the one place that says what data are.

    Args:
        data: one of these; or a pair (x, y) of tensors or arrays, where x may be a tuple or dict of several.
        what: errors call it so.
    """
    if isinstance(data, Part | DataLoader):
        return data
    if isinstance(data, tuple | list) and is_pair(data):
        return Part(_inputs(data[0]), as_tensor(data[1], "y"))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        return data
    raise TypeError(f"{what} must be {FORMS}; got {type(data).__name__}")


def batches_in_order(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets, batch by batch, in the order they are stored in and as they are, without augmentation.

    Args:
        data: in any form that `taken` knows.
        batch_size: where it is not a loader's.
    """
    found = taken(data)
    if isinstance(found, Part):
        part = with_targets(found)
        for start in range(0, len(part), batch_size):
            chosen = part.subset(slice(start, start + batch_size))
            yield chosen.inputs(), chosen.y
        return
    loader = found if isinstance(found, DataLoader) else DataLoader(found, batch_size=batch_size)
    yield from map(inputs_and_targets, loader)


def gathered(data: Any, batch_size: int, what: str = "data") -> Part:
    """All inputs and targets in memory; a `Part` stays as it is, and so do its stored inputs.

    Args:
        data: in any form that `taken` knows.
        batch_size: in which a data set is read.
        what: errors call it so.
    """
    found = taken(data, what)
    if isinstance(found, Part):
        return found
    batches = list(batches_in_order(found, batch_size))
    if not batches:
        raise ValueError(f"{what} is empty: there are no batches")
    for tensor in (one for batch in batches for one in tensors_in(batch)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"a batch of {what} must be (inputs, targets), tensors or tuples and dicts of tensors; it holds a "
                f"{type(tensor).__name__}"
            )
    x, y = (_joined([batch[i] for batch in batches]) for i in (0, 1))
    return Part(x, y)


def with_targets(part: Part) -> Part:
    """`part`, unless it has no targets or no inputs."""
    if part.y is None:
        raise ValueError("these data have no targets: nothing to learn from, or to be scored by")
    return not_empty(part)


def not_empty(part: Part) -> Part:
    """`part`, unless it has no inputs."""
    if len(part) == 0:
        raise ValueError("these data are empty")
    return part


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor of a tensor, an array, a list or a table of numbers; floating arrays become torch's default type."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, Sequence) and not hasattr(value, "__array__"):
        raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}; bnn.data.arrays or bnn.data.csv read more kinds")
    tensor = torch.as_tensor(np.ascontiguousarray(array))
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def to_device(x: Any, device: torch.device) -> Any:
    """Inputs or targets on a device: a tensor, or those in tuples and dicts."""
    return each(x, lambda tensor: tensor.to(device))


def is_pair(data: Sequence[Any]) -> bool:
    """Whether this is (inputs, targets), rather than two items or batches, each a pair of its own."""
    if len(data) != 2 or isinstance(data[1], tuple):
        return False
    return not isinstance(data[1], list) or all(not isinstance(y, Tensor) or y.ndim == 0 for y in data[1])


def _inputs(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: as_tensor(part, f"x[{name!r}]") for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(as_tensor(part, f"x[{i}]") for i, part in enumerate(x))
    return as_tensor(x, "x")


def _joined(parts: list[Any]) -> Any:
    """Tensors of all batches one after the other, also inside tuples and dicts."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(list(column)) for column in zip(*parts, strict=True))
    return torch.cat(parts)


def inputs_and_targets(batch: Any, needed: bool = True) -> tuple[Any, Any]:
    """Inputs and targets of a batch: the last element is the target, several before it are several inputs.

    Args:
        needed: False where a batch may be inputs alone (a tensor, a dict, a list of one): then the target is None.
    """
    if not needed and (not isinstance(batch, tuple | list) or len(batch) == 1):
        return (batch[0] if isinstance(batch, tuple | list) else batch), None
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise TypeError(f"a batch must be a pair (inputs, targets); the loader gave {kind}")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
