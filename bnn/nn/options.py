"""What the options of all families share: parsing with errors that help."""

from __future__ import annotations

from typing import Any, Literal

from bnn._common.checks import check_choice, check_positive
from bnn._common.options import Options

__all__ = ["Options", "WeightSd", "check_weight_sd", "neal"]

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
