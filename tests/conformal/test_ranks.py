"""Which score bounds a new one: against counting, and the rows that a level takes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from bnn.conformal.ranks import rank, rows_needed, thresholds


@pytest.mark.parametrize("percent", range(1, 100))
def test_the_rank_is_exact_for_levels_as_they_are_written(percent: int) -> None:
    level = float(f"0.{percent:02d}")
    for rows in (*range(1, 210), 999, 9999):
        k = rank(rows, level)
        assert 100 * (k - 1) < (rows + 1) * percent <= 100 * k


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 0.999])
def test_the_rows_needed_are_the_fewest_whose_rank_is_among_them(level: float) -> None:
    needed = rows_needed(level)
    assert rank(needed, level) <= needed
    assert rank(needed - 1, level) > needed - 1 or needed == 1
    assert Fraction(needed, needed + 1) >= Fraction(str(level))


def test_thresholds_are_those_scores() -> None:
    assert thresholds([[1.0, 2.0, 3.0, 4.0], [0.0, 5.0]], 0.5, ["a", "b"]) == [3.0, 5.0]  # ranks 2.5 and 1.5, up


def test_too_few_rows_say_how_many_it_takes() -> None:
    with pytest.raises(ValueError, match=r"level 0.9 takes 9 calibration rows, and there are 8: .* at most 0.888$"):
        thresholds([[0.0] * 8], 0.9, [""])
    with pytest.raises(
        ValueError, match=r"takes 9 calibration rows of each, and there are 3 of class 0, 0 of class 2: set"
    ):
        thresholds([[0.0] * 3, [0.0] * 9, []], 0.9, ["class 0", "class 1", "class 2"])
    assert thresholds([[0.0] * 8], 0.888, [""]) == [0.0]
    with pytest.raises(ValueError, match=r"takes 1 calibration row, and there are 0: set more aside$"):
        thresholds([[]], 0.5, [""])
    with pytest.raises(ValueError, match=r"takes 9 calibration rows, and there is 1: set more"):
        thresholds([[0.0]], 0.9, [""])


@pytest.mark.parametrize("level", [0, 1, 1.5, -0.1, "0.9", None])
def test_levels_are_between_0_and_1(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be a number between 0 and 1, both excluded; got "):
        rank(10, level)
