"""Inputs to look at a network's activations with, from data in any form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from bnn._engine.inputs import batches_of, join_outputs, number_of_inputs

INPUTS = 1000  # used at most
BATCH = 100  # inputs that travel together


def first_inputs(data: Any, most: int, device: torch.device) -> Iterator[Any]:
    """At most `most` inputs, batch by batch, on a device: evenly spaced, or the first that a loader gives.

    Args:
        data: as `bnn.fit` takes them (a pair is a tuple: a list holds batches), of a `Data` the training part as it is
            stored; inputs alone: a tensor or array, a dict of them, a `Part` or data set without targets; or any
            iterable of batches, inputs or (inputs, targets).
    """
    from bnn.data.forms import to_device  # here, so that `import bnn` stays light

    seen = 0
    for x in _joined(_batches(data, most)):
        rest = most - seen
        x = batches_of(x, rest)[0] if number_of(x) > rest else x
        seen += number_of(x)
        yield to_device(x, device)
        if seen >= most:
            return


def number_of(x: Any) -> int:
    """How many inputs these are; 1 where nobody can say."""
    return number_of_inputs(x) or 1


def copied(x: Any) -> Any:
    """The same inputs in tensors of their own, for a network that may change them in place."""
    if isinstance(x, Tensor):
        return x.clone()
    if isinstance(x, tuple | list) and not hasattr(x, "_fields"):
        return type(x)(map(copied, x))
    return {name: copied(value) for name, value in x.items()} if isinstance(x, dict) else x


def _batches(data: Any, most: int) -> Iterator[Any]:
    from bnn.data.dataset import Data, Part
    from bnn.data.forms import FORMS, as_tensor, inputs_and_targets, is_pair, taken

    if isinstance(data, Data):
        data = data.train
    elif isinstance(data, Tensor | np.ndarray):
        data = Part(as_tensor(data, "activations"))
    elif isinstance(data, Mapping):
        data = Part({name: as_tensor(x, f"activations[{name!r}]") for name, x in data.items()})
    elif isinstance(data, tuple) and is_pair(data):
        data = taken(data)
    if isinstance(data, Part):
        yield from (data.inputs(chosen) for chosen in _spaced(len(data), most).split(BATCH))
        return
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        data = DataLoader(Subset(data, _spaced(len(data), most).tolist()), batch_size=BATCH)
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise TypeError(
            f"activations must be {FORMS}; inputs alone, as a tensor; or any iterable of batches; got "
            f"{type(data).__name__}"
        )
    for batch in data:
        several = isinstance(batch, tuple | list)
        yield batch if not several else batch[0] if len(batch) == 1 else inputs_and_targets(batch)[0]


def _spaced(n: int, most: int) -> Tensor:
    """Indices of at most `most` of n inputs, evenly spaced: data are often stored class by class."""
    count = min(n, most)
    return torch.arange(count) * n // max(count, 1)


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches of at least half the usual size, where small ones can be joined."""
    held: list[Any] = []
    for x in batches:
        held.append(x)
        if sum(map(number_of, held)) >= BATCH // 2:
            yield from _together(held)
            held = []
    yield from _together(held)


def _together(held: list[Any]) -> list[Any]:
    if len(held) < 2:
        return held
    try:
        return [join_outputs(held, torch.cat)]
    except (RuntimeError, TypeError, ValueError):  # of other shapes, as sequences that were padded batch by batch
        return held
