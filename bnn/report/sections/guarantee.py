"""What a guarantee changes: coverage and size of intervals, or sets of classes, before and after, run by run."""

from __future__ import annotations

from collections.abc import Sequence

from bnn.evaluation.pieces import Coverage
from bnn.metrics import written
from bnn.report.entry import Entry
from bnn.report.views import TableView

SIZES = {"regression": "mean width", "classification": "classes in a set"}


def guarantee_tables(entries: Sequence[Entry]) -> list[TableView]:
    """A table for each run that has a guarantee."""
    return [_table(entry) for entry in entries if entry.evaluation.guarantee is not None]


def _table(entry: Entry) -> TableView:
    found = entry.evaluation.guarantee
    assert found is not None
    size = SIZES[entry.evaluation.task]
    note = found.statement or f"{found.rows:,} inputs set aside are too few for any of these levels"
    title = f"{entry.name}: before and after its guarantee, on {found.before[0].inputs:,} {found.on} inputs"
    header, rows = ["promised", "held before", size, "held, guaranteed", size], _rows(found.before, found.after)
    if found.by_target:
        header = ["target", *header]
        rows = [[name, *row] for name, one in found.by_target.items() for row in _rows(one.before, one.after)]
    return TableView(title, header, rows, open=True, note=f"{note[:1].upper()}{note[1:]}.")


def _rows(before: Sequence[Coverage], later: Sequence[Coverage]) -> list[list[str]]:
    """A row for every level."""
    after = {one.level: one for one in later}
    return [[written.percent(one.level, 0), *_cells(one), *_cells(after.get(one.level))] for one in before]


def _cells(found: Coverage | None) -> list[str]:
    """The share with its interval, and the size."""
    if found is None:
        return ["too few inputs set aside", "-"]
    one = found.covered
    text = (
        f"{written.percent(one.value)} [{written.percent(one.low, bare=True)}, {written.percent(one.high, bare=True)}]"
    )
    return [text, written.real(found.size)]
