"""Do the intervals of one real target, or of each of several, hold as much as they say? By the rule of `promise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from bnn.evaluation.coverage import LEVELS, wilson
from bnn.evaluation.pieces import Coverage

GAP = 0.03  # a smaller one is no matter, however certain it is
ALARMS = 0.05  # the share of promises that are kept and called broken, at most
KEPT, NARROW, WIDE, SHAPE = "as promised", "too narrow", "too wide", "of the wrong shape"


@dataclass(frozen=True)
class TargetPromise:
    """What the intervals of one real target promised and what was found.

    Args:
        verdict: "as promised", "too narrow", "too wide", or "of the wrong shape" (too wide at one level, too narrow at
            another).
        promised: the level that is furthest off; where none is, 0.9.
        held: the share of its targets in such intervals.
        low, high: its 95 % interval.
        inputs: where this target is known.
        levels: what intervals of 50, 80 and 90 % hold.
    """

    verdict: str
    promised: float
    held: float
    low: float
    high: float
    inputs: int
    levels: tuple[Coverage, ...]

    @property
    def kept(self) -> bool:
        """Whether it is."""
        return self.verdict == KEPT


def judged(found: Sequence[Coverage], z: float | None) -> TargetPromise:
    """The verdict on what intervals hold at every level, each by Wilson's interval with this z; None: by none."""
    off = [one for one in found if z is not None and broken(one.level, one.covered.value, one.inputs, z)]
    shown = max(off, key=lambda one: abs(one.covered.value - one.level), default=found[-1])
    signs = {one.covered.value > one.level for one in off}
    verdict = KEPT if not off else SHAPE if len(signs) > 1 else WIDE if signs == {True} else NARROW
    held = shown.covered
    return TargetPromise(verdict, shown.level, held.value, held.low, held.high, shown.inputs, tuple(found))


def judged_each(found: Mapping[str, Sequence[Coverage]]) -> dict[str, TargetPromise]:
    """The verdict on each of several targets, all levels of all of them together by Bonferroni's rule.

    Targets that no input has are left out.
    """
    known = {name: levels for name, levels in found.items() if levels[-1].inputs}
    return {name: judged(levels, z_of(len(LEVELS) * len(known))) for name, levels in known.items()}


def worst_of(found: Mapping[str, TargetPromise]) -> str:
    """The name of the target whose intervals are furthest off; "" where all are as promised.

    >>> worst_of({})
    ''
    """
    off = [name for name, one in found.items() if not one.kept]
    return max(off, key=lambda name: abs(found[name].held - found[name].promised), default="")


def z_of(looks: int) -> float:
    """Two-sided, at 1 - 0.05 / looks: by Bonferroni so many looks together raise a false alarm in 5 % of cases.

    >>> round(z_of(1), 6), round(z_of(3), 6)
    (1.959964, 2.39398)
    """
    return NormalDist().inv_cdf(1 - ALARMS / (2 * looks))


def broken(promised: float, held: float, inputs: int, z: float) -> bool:
    """Whether the promise is outside the interval of what was found, and by more than the gap that matters."""
    found = wilson(held, inputs, z)
    return not found.low <= promised <= found.high and abs(held - promised) > GAP
