"""Reading a preparation back from JSON: what is missing, unknown or of the wrong type is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def stored_fields(stored: Any, what: str, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """The fields of a stored `what`, checked: all those of `types` and no others ("kind" aside).

    >>> stored_fields({"kind": "images", "mean": [0.5]}, "scaling", mean=list)
    {'mean': [0.5]}
    """
    if not isinstance(stored, Mapping):
        raise TypeError(f"a stored {what} is a dict, got a {type(stored).__name__}")
    found = {name: value for name, value in stored.items() if name != "kind"}
    if found.keys() != types.keys():
        raise ValueError(f"a stored {what} has {sorted(types)}, got {sorted(map(str, found))}")
    for name, type_ in types.items():
        if not isinstance(found[name], type_):
            raise ValueError(f"{name!r} of a stored {what} cannot be {found[name]!r}")
    return found


def stored_number(value: Any, what: str, positive: bool = False) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, got {value!r}")
    if positive and value <= 0:
        raise ValueError(f"{what} must be above 0, got {value!r}")
    return float(value)
