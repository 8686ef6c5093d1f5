"""Records: what is stored as JSON, and read back so that what is missing, unknown or of the wrong type is named."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints


def encoded(value: Any) -> Any:
    """What `json` takes: dataclasses as dicts, tuples as lists, numbers that are not finite as None.

    >>> encoded({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if is_dataclass(value):
        return {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: encoded(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decoded(kind: Any, value: Any, where: str = "it") -> Any:
    """The inverse of `encoded` for a value of this type; raises ValueError that says where it does not fit.

    A None where a number belongs is `math.nan` itself, so that two decoded trees compare as equal.

    >>> decoded(dict[str, tuple[float, ...]], {"a": [1, None]})
    {'a': (1.0, nan)}
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else decoded(args[0], value, where)
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if origin is dict and isinstance(value, Mapping):
        return {name: decoded(args[1], part, f"{where}.{name}") for name, part in value.items()}
    if origin is tuple and isinstance(value, tuple | list):
        return tuple(decoded(args[0], part, f"{where}[{i}]") for i, part in enumerate(value))
    if kind is float and (value is None or isinstance(value, int | float)) and not isinstance(value, bool):
        return math.nan if value is None else float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    expected = getattr(kind, "__name__", str(kind)) if origin is None else str(kind)
    raise ValueError(f"{where} must be of type {expected}, got {value!r:.60}")


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    """Fields that an older file does not have are at their defaults."""
    known = get_type_hints(kind)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    if not isinstance(value, Mapping) or not needed <= value.keys() <= known.keys():
        got = sorted(value) if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise ValueError(f"{where} must have exactly the fields {sorted(known)}, got {got}")
    return kind(**{name: decoded(known[name], value[name], f"{where}.{name}") for name in known if name in value})


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
