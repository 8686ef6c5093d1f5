"""What the summary of a run says about its guarantee."""

from __future__ import annotations

import textwrap
from typing import Any

from bnn.conformal.ranks import USUAL
from bnn.train.runs.run import Run

FEW = 8  # targets or classes that a line names
WIDTH, INDENT = 110, 12 * " "  # of a line, and of what stands below the first


def guarantee_result(run: Run) -> dict[str, Any] | None:
    """How many inputs stand behind it, behind each of several targets or classes, and the level to ask for, as JSON."""
    if run.guarantee is None:
        return None
    found = run.guarantee.named(run.targets, run.classes)
    by_class = found.guarantee.by_class
    return {"inputs": found.rows, "rows_of_each": found.rows_of_each, "by_class": by_class, "level": found.level}


def guarantee_lines(found: dict[str, Any]) -> list[str]:
    """The same for people.

    >>> guarantee_lines({"inputs": 150, "rows_of_each": {"power": 150, "loss": 95}, "by_class": False, "level": 0.9})
    ['guarantee   by 150 inputs that were set aside (power 150, loss 95), for `predict`']
    """
    inputs, of_each, level = found["inputs"], found["rows_of_each"], found["level"]
    text = f"by {inputs:,} inputs that were set aside{_counted(of_each, inputs)}"
    text += ", within every class" if found["by_class"] else ""
    if level is None:
        text += ": of no use, as a class has none"
    elif level < USUAL[0]:
        text += f", for `predict --guarantee {level:g}`: too few for {USUAL[0]:g}"
    else:
        text += ", for `predict`"
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{'guarantee':<12}", subsequent_indent=INDENT, break_on_hyphens=False
    )


def _counted(of_each: dict[str, int], inputs: int) -> str:
    """How many are known of each, where that is not all of them; of many the fewest and the most."""
    if set(of_each.values()) <= {inputs}:
        return ""
    if len(of_each) > FEW:
        return f" ({min(of_each.values()):,} to {max(of_each.values()):,} of each)"
    return f" ({', '.join(f'{name} {rows:,}' for name, rows in of_each.items())})"
