"""Which inputs are scored: the forms in which `bnn.evaluate` takes data."""

from __future__ import annotations

from typing import Any

from bnn.data.dataset import Data, Part
from bnn.data.forms import gathered


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
