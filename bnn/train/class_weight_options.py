"""How class weights are asked for, checked and scaled, as plain numbers. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bnn._common.text import nearest

BALANCED = "balanced"
EXPECTED = f'"{BALANCED}", a weight for each class in order, or {{class: weight}}'


def asked_for(asked: Any, counts: Sequence[int], names: Sequence[str]) -> list[float]:
    """The weights (C,) as they were asked for, checked, and not scaled yet.

    Args:
        counts: training data of each class.

    >>> asked_for("balanced", [90, 10], ["nein", "ja"])
    [0.555..., 5.0]
    >>> asked_for({"ja": 5}, [90, 10], ["nein", "ja"])
    [1.0, 5.0]
    """
    if isinstance(asked, str):
        if asked != BALANCED:
            raise ValueError(f"class weights must be {EXPECTED}; got {asked!r}")
        return balanced(counts)
    if isinstance(asked, Mapping):
        return _by_class(asked, counts, names)
    if hasattr(asked, "tolist"):  # of a tensor or an array
        asked = asked.tolist()
    if not isinstance(asked, Sequence):
        raise TypeError(f"class weights must be {EXPECTED}; got {asked!r}")
    found = [_weight(value, f"class {i}") for i, value in enumerate(asked)]
    if len(found) != len(counts):
        of = f", {_listed(names)}" if names else ""
        raise ValueError(f"class weights: {len(found)} weights were given, there are {len(counts)} classes{of}")
    return found


def balanced(counts: Sequence[int]) -> list[float]:
    """w_c = n / (C n_c) for the C classes that occur, n_c of n data each; 1 for a class that does not.

    Every class that occurs then counts alike, and the mean weight over the data is 1.
    """
    there = sum(count > 0 for count in counts)
    return [sum(counts) / (there * count) if count else 1.0 for count in counts]


def scaled(weights: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Weights in the same proportions, with mean 1 over the data: sum_c n_c w_c = n.

    The data term of the objective is then as large as without weights, and the KL weighs against it as much.

    >>> scaled([1.0, 5.0], [90, 10])
    [0.714..., 3.571...]
    """
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    if not total > 0:
        raise ValueError("class weights are 0 for every class of the training data: give one of them a weight above 0")
    return [weight * sum(counts) / total for weight in weights]


def _by_class(asked: Mapping[Any, Any], counts: Sequence[int], names: Sequence[str]) -> list[float]:
    """Weights by the names of classes, or by their indices; 1 for classes that are not named.

    A weight for a class without training data would change nothing, and is an error.
    """
    if not asked:
        raise ValueError(f"class weights must be {EXPECTED}; got an empty dict")
    found = [1.0] * len(counts)
    for key, value in asked.items():
        place = _place(key, len(counts), names)
        if not counts[place]:
            raise ValueError(
                f"class weights: there is a weight for class {key!r}, of which the training data hold nothing, so "
                "that it would change nothing: leave it out, or see that some of this class is left to train on (rows "
                "that are set aside for a guarantee are drawn whatever their class)"
            )
        found[place] = _weight(value, f"class {key!r}")
    return found


def _place(key: Any, classes: int, names: Sequence[str]) -> int:
    if str(key) in names:
        return list(names).index(str(key))
    known = names or [str(i) for i in range(classes)]
    if not names and str(key) in known:
        return int(key)
    raise ValueError(f"class weights: there is no class {key!r}{nearest(str(key), known)}; there are {_listed(known)}")


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(repr(name) for name in list(names)[:most])}{more}"


def _weight(value: Any, what: str) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"class weights: the weight of {what} must be a finite number, 0 or more; got {value!r}")
    return number


def check_form(asked: Any) -> None:
    """Raises unless a recipe may hold it: None, "balanced", a list of weights or {class: weight}."""
    if asked is None or asked == BALANCED:
        return
    if isinstance(asked, Mapping) and asked:
        for key, value in asked.items():
            _weight(value, f"class {key!r}")
    elif isinstance(asked, list | tuple) and asked:
        for i, value in enumerate(asked):
            _weight(value, f"class {i}")
    else:
        raise ValueError(f"class weights must be {EXPECTED}; got {asked!r}")
