"""What the sets of a guarantee hold of each class: of rare ones it may be much less, as the average is promised."""

from __future__ import annotations

from bnn.evaluation.classes import FEW, WORST, percent
from bnn.evaluation.pieces import Guaranteed
from bnn.metrics import written


def class_coverage_rows(found: Guaranteed) -> list[list[str]]:
    """A table as text, its header first; of many classes those that are held least often. [] where there is none."""
    there = {name: levels for name, levels in found.classes.items() if levels and levels[-1].inputs}
    if not there:
        return []
    shown, left_out = there, ""
    if len(there) > FEW:
        least = sorted(there.items(), key=lambda one: one[1][-1].covered.value)[:WORST]
        shown, left_out = dict(least), f" (worst {WORST} of {len(there):,})"
    levels = [written.percent(one.level, 0) for one in next(iter(there.values()))]
    rows = [
        [name, f"{each[-1].inputs:,}", *(percent(one.covered.value) for one in each)] for name, each in shown.items()
    ]
    header = [f"guaranteed sets hold, of class{left_out}", f"{found.on} inputs", *(f"at {one}" for one in levels)]
    return [header, *rows]
