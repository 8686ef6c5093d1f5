"""What the options of all families share: parsing with errors that help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnn._common.checks import check_choice, check_positive
from bnn._common.text import nearest

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
            hint = nearest(unknown[0], cls.names())
            raise TypeError(f"unknown option {unknown[0]!r}{hint} for {family!r}; expected some of {cls.names()}")
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        return cls(**plain)


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
