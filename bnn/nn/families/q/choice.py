"""What `q_inducing=` takes: a name, a `QInducing` class or object; and what files keep of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bnn._common.text import nearest
from bnn.nn.families.q.base import CLASSES, QInducing

Record = str | dict[str, Any]  # a name, or {"name": ..., option: value, ...}


def names() -> list[str]:
    """The names that `q_inducing=` knows."""
    return sorted(CLASSES)


def q_class(name: str) -> type[QInducing]:
    """The class that `name` means; ValueError where there is none."""
    if not isinstance(name, str) or name not in CLASSES:
        raise ValueError(f"unknown q_inducing {name!r}{nearest(str(name), names())}; expected one of {names()}")
    return CLASSES[name]


def record_of(given: Any) -> Record:
    """What a user gave as `q_inducing`, in the form that files keep: its name, with its own options if it has some.

    A name, a `QInducing` class or object, or {"name": ..., option: value, ...}, which is what an object is recorded as.
    """
    if isinstance(given, str):
        return q_class(given).name
    if isinstance(given, Mapping):
        own = {key: value for key, value in given.items() if key != "name"}
        return record_of(_made(q_class(given.get("name", "")), own))
    if isinstance(given, type) and issubclass(given, QInducing):
        return _registered(given).name
    if not isinstance(given, QInducing):
        raise ValueError(f"q_inducing must be one of {names()}, or a QInducing class or object; got {given!r}")
    kind = _registered(type(given))
    own = _own_options(given)
    try:
        json.dumps(own)
    except TypeError as error:
        raise ValueError(f"options of a q(U) are written to files as JSON; {kind.__name__}: {error}") from None
    return {"name": kind.name, **own} if own else kind.name


def q_from(record: Record, options: Any) -> QInducing:
    """The posterior q(U) of a layer with these options of the family, from what `record_of` returned."""
    if isinstance(record, str):
        return q_class(record).of(options)
    return q_class(record["name"]).of(options, **{key: value for key, value in record.items() if key != "name"})


def _own_options(q: QInducing) -> dict[str, Any]:
    """The fields of a dataclass, those aside that were left open (None by default)."""
    if not dataclasses.is_dataclass(q):
        if vars(q):
            raise ValueError(
                f"{type(q).__name__} holds {list(vars(q))}: make it a dataclass, so that files record them"
            )
        return {}
    open_fields = {field.name for field in dataclasses.fields(q) if field.default is None}
    fields = dataclasses.asdict(q)
    return {name: value for name, value in fields.items() if value is not None or name not in open_fields}


def _made(kind: type[QInducing], own: dict[str, Any]) -> QInducing:
    try:
        return kind(**own)
    except TypeError as error:
        raise ValueError(f"q_inducing={kind.name!r} does not take {own}: {error}") from None


def _registered(kind: type[QInducing]) -> type[QInducing]:
    if CLASSES.get(getattr(kind, "name", "")) is not kind:
        raise ValueError(f"{kind.__name__} needs a `name` of its own, by which files can record it")
    return kind
