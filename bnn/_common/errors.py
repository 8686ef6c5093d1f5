"""Errors with fields: whoever catches one reads what it is about instead of searching its text."""

from __future__ import annotations


class ArgumentError(ValueError):
    """Input that makes no sense as it is, and the arguments that would help.

    >>> error = ArgumentError("column 'id' looks like a row number; leave it out with drop=['id']", "drop")
    >>> str(error), error.arguments
    ("column 'id' looks like a row number; leave it out with drop=['id']", ('drop',))
    """

    def __init__(self, message: str, *arguments: str) -> None:
        super().__init__(message)
        self.arguments = arguments


class DivergenceError(ArithmeticError):
    """The loss or its gradient is no longer a finite number; the parameters are those before that step."""
