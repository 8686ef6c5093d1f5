"""Whether data that are read again are those of a run: their rows by part, how inputs are prepared, targets scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bnn._common.text import listed
from bnn.data.dataset import Data, TargetScale
from bnn.data.tables.preparation import TablePreparation

PARTS = {"train": "training", "validation": "validation", "test": "test", "guarantee": "guarantee"}  # as people say
RELATIVE, ABSOLUTE = 1e-6, 1e-9  # numbers that are learned on the same rows agree so far on all machines


def rows_by_part(data: Data) -> dict[str, int]:
    """How many rows every part has that is there, as a run stores it."""
    return {name: len(part) for name in PARTS if (part := getattr(data, name)) is not None}


def other_rows(data: Data, stored: Mapping[str, int] | None) -> list[str]:
    """In which parts there are more or fewer rows than were stored, in words; none where nothing was (older runs)."""
    if stored is None:
        return []
    found = rows_by_part(data)
    return [
        f"{stored.get(part, 0):,} {called} inputs then, {found.get(part, 0):,} now"
        for part, called in PARTS.items()
        if found.get(part) != stored.get(part)
    ]


def other_meaning(
    data: Data, in_shape: tuple[int, ...], classes: Sequence[str], preparation: Any, target: TargetScale | None
) -> list[str]:
    """What of inputs and targets is not as it was, in words."""
    found = []
    if data.in_shape != in_shape:
        found.append(f"inputs of shape {in_shape} then, {data.in_shape} now")
    if data.classes != tuple(classes):
        found.append(f"the classes {list(classes)} then, {list(data.classes)} now")
    found += _other_preparation(data.preparation, preparation)
    if not _alike(*(None if one is None else one.to_dict() for one in (data.target, target))):
        found.append("the scale of the target")
    return found


def _other_preparation(now: Any, then: Any) -> list[str]:
    """How the inputs are prepared otherwise; of tables which columns are."""
    if not isinstance(now, TablePreparation) or not isinstance(then, TablePreparation):
        alike = _alike(*(None if one is None else one.to_dict() for one in (now, then)))
        return [] if alike else ["the scaling of the inputs"]
    before, after = ({one.name: one.to_dict() for one in each.columns} for each in (then, now))
    if list(before) != list(after):
        shown = [listed(map(repr, names), 10) for names in (before, after)]
        return [f"the columns {shown[0]} then, {shown[1]} now"]
    changed = [repr(name) for name in before if not _alike(before[name], after[name])]
    return [f"the mean, sd or categories of {listed(changed)}"] if changed else []


def _alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same, numbers up to rounding.

    >>> _alike({"mean": [0.1]}, {"mean": [0.1 + 1e-12]}), _alike({"mean": [0.1]}, {"mean": [0.11]}), _alike("a", 1)
    (True, False, False)
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(one == other)
