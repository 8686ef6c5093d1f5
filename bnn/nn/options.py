"""What the options of all families share: parsing with errors that help, and the checks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Options:
    """Base of every family's options: a frozen dataclass that validates itself, from Python or from a JSON file."""

    @classmethod
    def names(cls) -> list[str]:
        """The options a family knows."""
        return [field.name for field in fields(cls)]

    @classmethod
    def parse(cls, family: str, options: Mapping[str, Any]) -> Self:
        """The options of `family` from keyword arguments; a name it does not know is a TypeError that lists them."""
        unknown = [name for name in options if name not in cls.names()]
        if unknown:
            close = difflib.get_close_matches(unknown[0], cls.names(), n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(f"unknown option {unknown[0]!r}{hint} for {family!r}; expected some of {cls.names()}")
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        return cls(**plain)


def check_positive(name: str, value: Any, *, zero: bool = False, none: bool = False) -> None:
    """Raises unless `value` is a finite number > 0 (>= 0 with `zero`; or None with `none`)."""
    if none and value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 <= value < float("inf")) or (value == 0 and not zero):
        wanted = f"a finite number {'>= 0' if zero else '> 0'}" + (" or None" if none else "")
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def check_size(name: str, value: Any, *, none: bool = False) -> None:
    """Raises unless `value` is an integer >= 1 (or None with `none`)."""
    if none and value is None:
        return
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
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


WeightSd = float | Literal["neal"]  # "neal": 1 / sqrt(fan-in without the bias)


def check_weight_sd(name: str, value: Any) -> None:
    """Raises unless `value` is a positive number or "neal"."""
    if isinstance(value, str):
        check_choice(name, value, ["neal"])
    else:
        check_positive(name, value)


def neal(weight_sd: WeightSd, fan_in: int) -> float:
    """The prior sd of the weights as a number: "neal" is 1 / sqrt(fan_in)."""
    return fan_in**-0.5 if isinstance(weight_sd, str) else float(weight_sd)
