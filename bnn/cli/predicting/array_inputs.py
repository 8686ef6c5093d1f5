"""Arrays in .npy and .npz files as inputs of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from bnn.cli.mistakes import Mistake, described
from bnn.cli.predicting.named_inputs import Inputs, kind_of, refuse, row_names
from bnn.data.array_sets.array_files import Array, array_of
from bnn.data.array_sets.array_preparation import ScaledInputs
from bnn.data.dataset import Part

NAMES = ("x", "x_test")  # of the inputs in an .npz file


def read_arrays(preparation: ScaledInputs, paths: Sequence[str]) -> Inputs:
    """The rows of all files, in their order."""
    shape = ", ".join(map(str, preparation.shape))
    takes = f"this run was trained on arrays of numbers of shape (N, {shape}): give a .npy or .npz file"
    for path in paths:
        if (kind := kind_of(path)) != "array":
            raise refuse(path, kind, takes)
    names: list[str] = []
    prepared = []
    for path in paths:
        array = loaded(path)
        with naming(path):
            prepared.append(preparation(array))
        names += row_names(path, len(paths) > 1, "row", range(len(array)))
    return Inputs(names, Part(torch.cat(prepared)))


def loaded(path: str) -> Array:
    """The array of inputs in a file, of at least one."""
    array = array_of(path, NAMES)
    if array.ndim == 0 or len(array) == 0:
        raise Mistake(f"{path} holds no input: its array has the shape {array.shape}")
    return array


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors inside name the file."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Mistake(f"{path}: {described(error)}") from error
