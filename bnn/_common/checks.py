"""Checks of single values: an error says what was expected and what came."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def check_positive(name: str, value: Any, *, zero: bool = False, none: bool = False, other: str = "") -> None:
    """Raises unless `value` is a finite number > 0 (>= 0 with `zero`; or None with `none`); `other` may be meant."""
    if none and value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 <= value < float("inf")) or (value == 0 and not zero):
        wanted = f"a finite number {'>= 0' if zero else '> 0'}" + (" or None" if none else "")
        wanted += f" or {other}" if other else ""
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def check_size(name: str, value: Any, *, none: bool = False) -> None:
    """Raises unless `value` is an integer >= 1 (or None with `none`)."""
    if none and value is None:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1{' or None' if none else ''}, got {value!r}")


def check_choice(name: str, value: Any, known: list[str]) -> None:
    """Raises unless `value` is one of `known`."""
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; expected one of {known}")


def check_bool(name: str, value: Any) -> None:
    """Raises unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def check_number(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def whole(name: str, value: int, least: int = 1) -> int:
    """An integer that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}; got {value!r}")
    return int(value)


def share(name: str, value: float) -> float:
    """A number strictly between 0 and 1.

    >>> share("level", "0.9")
    Traceback (most recent call last):
    ValueError: level must be a number between 0 and 1, both excluded; got '0.9'
    """
    try:
        inside = 0 < value < 1
    except TypeError:  # text, None
        inside = False
    if not inside:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded; got {value!r}")
    return float(value)


def fraction_of(value: Any, what: str) -> float:
    """`value` as a fraction in [0, 1); None is 0.

    >>> fraction_of(0.2, "test"), fraction_of(None, "test")
    (0.2, 0.0)
    """
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{what} must be a fraction from 0 up to 1 (0 or None: no such part), got {value!r}")
    return float(value)


def check_budget(name: str, value: Any) -> None:
    """Raises unless `value` is None, a fraction in (0, 1] or an integer >= 1."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and not whole and not (isinstance(value, float) and 0 < value <= 1):
        wanted = "a fraction of the parameters, above 0 and at most 1.0, or an integer number of them"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
