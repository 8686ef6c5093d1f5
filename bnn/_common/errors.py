"""Errors with fields: whoever catches one reads what it is about instead of searching its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ArgumentError(ValueError):
    """Input that makes no sense as it is, and the arguments that would help.

    >>> error = ArgumentError("column 'id' looks like a row number; leave it out with drop=['id']", "drop")
    >>> str(error), error.arguments
    ("column 'id' looks like a row number; leave it out with drop=['id']", ('drop',))
    """

    def __init__(self, message: str, *arguments: str) -> None:
        super().__init__(message)
        self.arguments = arguments


class ArgumentWarning(UserWarning):
    """What to look at, and the arguments that would help, as of an `ArgumentError`.

    >>> ArgumentWarning("column 'id' looks like a row number; leave it out with drop=['id']", "drop").arguments
    ('drop',)
    """

    def __init__(self, message: str, *arguments: str) -> None:
        super().__init__(message)
        self.arguments = arguments


class DivergenceError(ArithmeticError):
    """The loss or its gradient is no longer a finite number; the parameters are those before that step."""


class OptionError(ValueError):
    """An option that makes no sense; in the message `{name}` stands for the option, spelled as it was given.

    >>> error = OptionError("{by}: give a threshold, too: {coverage}", by="total", coverage=None)
    >>> str(error)
    "by='total': give a threshold, too: coverage"
    >>> error.spelled(lambda name, value: f"--{name}" if value is None else f"--{name} {value}")
    '--by total: give a threshold, too: --coverage'
    """

    def __init__(self, message: str, **options: Any) -> None:
        self.message, self.options = message, options
        super().__init__(self.spelled(lambda name, value: name if value is None else f"{name}={value!r}"))

    def spelled(self, spell: Callable[[str, Any], str]) -> str:
        """The message with every option as `spell(name, value)` writes it; an option without a value has None."""
        return self.message.format(**{name: spell(name, value) for name, value in self.options.items()})


def message_of(error: Exception) -> str:
    """The message of an error, to be put into that of another; a KeyError's without its quotation marks.

    >>> message_of(KeyError("width"))
    'width'
    """
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


def braced(text: object) -> str:
    """Text to be put into the message of an `OptionError` as it is.

    >>> str(OptionError(braced("{a}") + " in {out}", out=None))
    '{a} in out'
    """
    return str(text).replace("{", "{{").replace("}", "}}")
