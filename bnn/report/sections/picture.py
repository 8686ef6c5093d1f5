"""One picture of a report: what it is called, how it is read, and how it is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bnn import plots
from bnn.evaluation import Evaluation
from bnn.report.entry import Entry

LONGEST = 22  # letters of a name in a key


@dataclass(frozen=True)
class Picture:
    """One pair of axes.

    Args:
        section: the section of the report it belongs to.
        key: its name within the report, good for a file and an anchor.
        title: what stands above it.
        how: the one sentence that says how to read it.
        facts: its content in words, for those who do not see it.
        draw: draws it on axes.
        overlaid: whether all runs are in it, so that its key is long.
        panel: what stands above pictures that share one frame and one sentence, run by run; "" stands alone.
        short: its title there.
        size: inches that it needs to be readable, where it needs its own; None: the usual ones.
    """

    section: str
    key: str
    title: str
    how: str
    facts: str
    draw: Callable[[Any], None]
    overlaid: bool = False
    panel: str = ""
    short: str = ""
    size: tuple[float, float] | None = None


@dataclass(frozen=True)
class Drawn:
    """A run as pictures show it: always in the same colour."""

    name: str
    color: str
    entry: Entry

    @property
    def label(self) -> str:
        """The name as it fits into a key."""
        return in_key(self.name)

    @property
    def evaluation(self) -> Evaluation:
        """What was found about it."""
        return self.entry.evaluation


def drawn(entries: Sequence[Entry]) -> list[Drawn]:
    """A colour for each run, in order."""
    return [Drawn(entry.name, color_of(i), entry) for i, entry in enumerate(entries)]


def color_of(place: int) -> str:
    """The colour of the run in this place; after the last colour they begin again."""
    return plots.PALETTE[place % len(plots.PALETTE)]


def in_key(name: str) -> str:
    """A name as text for matplotlib: short, no formula, and not hidden.

    >>> in_key("$5"), in_key("_own"), len(in_key(50 * "x"))
    ('\\\\$5', ' _own', 22)
    """
    half = LONGEST // 2
    short = name if len(name) <= LONGEST else f"{name[:half]}…{name[1 - half :]}"
    return (f" {short}" if short.startswith("_") else short).replace("$", r"\$")


def slug(text: str) -> str:
    """Text as part of a file name or an anchor.

    >>> slug("FFG-U, rank 16 <b>"), slug("***")
    ('ffg-u-rank-16-b', 'x')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
