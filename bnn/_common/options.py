"""Options as data: frozen dataclasses that validate themselves, whose fields say what a command line needs to know."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

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
        return cls(**{name: plain(value) for name, value in options.items()})


def plain(value: Any) -> Any:
    """A number of NumPy as Python's; nothing is one where NumPy is not loaded, so recipes do not load it."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def described(
    about: str,
    *,
    flag: str | None = "",
    panel: str = "",
    typed: Any = None,
    least: float | None = None,
    example: str = "",
    bayesian: bool = False,
    **default: Any,
) -> Any:
    """A field of a dataclass, with what `bayesianize train` needs to offer it as a flag.

    Args:
        about: what it is, for people.
        flag: how it is typed, as "--ml-epochs"; "": by the field's name; None: it is no flag.
        panel: the group of flags it is shown in; "": the usual one of its class.
        typed: the type of what is typed, where that is not the field's own.
        least: the smallest number allowed.
        example: of a list, for messages.
        bayesian: whether it means nothing to a plain network.
        default: `default=` or `default_factory=`, as of `dataclasses.field`.
    """
    told = {"about": about, "flag": flag, "panel": panel, "typed": typed, "least": least}
    made: Any = field(metadata=told | {"example": example, "bayesian": bayesian}, **default)
    return made
