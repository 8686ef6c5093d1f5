"""Which of n scores bounds a new one with a given probability: the arithmetic of split conformal prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from bnn._common.checks import share

USUAL = (0.9, 0.8, 0.7, 0.6, 0.5)  # levels that are suggested


def rank(rows: int, level: float) -> int:
    """k = ceil((n + 1) level) for n = `rows`, exact for the level as it is written; above n where n is too small.

    >>> rank(99, 0.55), rank(8, 0.9)  # in floating point 100 * 0.55 is above 55
    (55, 9)
    """
    return math.ceil((rows + 1) * _exact(level))


def rows_needed(level: float) -> int:
    """The smallest n with ceil((n + 1) level) <= n: ceil(level / (1 - level)).

    >>> rows_needed(0.9), rows_needed(0.95), rows_needed(0.99)
    (9, 19, 99)
    """
    exact = _exact(level)
    return math.ceil(exact / (1 - exact))


def usual_level(rows: int) -> float | None:
    """0.9, or where n = `rows` are too few for it the highest of 0.8, 0.7, 0.6 and 0.5 that they allow; None: none.

    >>> usual_level(200), usual_level(9), usual_level(8), usual_level(1), usual_level(0)
    (0.9, 0.9, 0.8, 0.5, None)
    """
    return next((level for level in USUAL if rows_needed(level) <= rows), None)


def thresholds(groups: Sequence[Sequence[float]], level: float, names: Sequence[str]) -> list[float]:
    """The k-th smallest score of every group of ascending scores.

    Args:
        names: of the groups, for the error; "" where there is only one.

    Raises:
        ValueError: a group has too few rows for the level; it says how many it takes.
    """
    needed = rows_needed(level)
    few = [(len(group), name) for group, name in zip(groups, names, strict=True) if len(group) < needed]
    if few:
        raise ValueError(_too_few(level, needed, few))
    return [group[rank(len(group), level) - 1] for group in groups]


def _too_few(level: float, needed: int, few: Sequence[tuple[int, str]]) -> str:
    found = ", ".join(f"{rows}{f' of {name}' if name else ''}" for rows, name in few[:5])
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    least = min(rows for rows, _ in few)
    lower = f", or ask for a level of at most {math.floor(1000 * least / (least + 1)) / 1000:g}" if least else ""
    each = " of each" if few[0][1] else ""
    rows, there = f"row{'s' if needed > 1 else ''}", "is" if [rows for rows, _ in few] == [1] else "are"
    return (
        f"a guarantee at level {level:g} takes {needed} calibration {rows}{each}, and there {there} {found}{more}: set "
        f"more aside{lower}"
    )


def _exact(level: float) -> Fraction:
    """0.9 as 9/10, as it is written, and not as the nearest binary number."""
    return Fraction(repr(share("level", level)))
