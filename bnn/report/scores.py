"""The table of the section on out-of-distribution inputs: runs and sets in rows, scores side by side in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bnn.evaluation import Evaluation
from bnn.evaluation.detection import SCORES, averages, marks, words
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.metrics.registry import metrics
from bnn.report.comparison import Cell, cell_of, sets
from bnn.report.entry import Entry

Scores = Mapping[str, Mapping[str, Interval]]
SHORT = {"fpr95": "FPR95"}  # titles as narrow as the numbers below them


@dataclass(frozen=True)
class ScoreRow:
    """One run on one set: a cell for every metric of every score."""

    name: str
    place: int  # of the run, for its colour
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ScoreTable:
    """Which score tells which set best.

    Args:
        scores: what stands above each group of columns.
        metrics: title, what it is and which way is better, of every column of a group.
        blocks: a set, or the mean over all of them, and its rows, one for each run.
        choices: run, the score to use and why.
    """

    scores: tuple[str, ...]
    metrics: tuple[tuple[str, str, str | float], ...]
    blocks: tuple[tuple[str, tuple[ScoreRow, ...]], ...]
    choices: tuple[tuple[str, str], ...]


def score_table(entries: Sequence[Entry]) -> ScoreTable | None:
    """Of runs on the same data; None if none has seen out-of-distribution inputs."""
    runs = [entry.evaluation for entry in entries]
    names = sets(runs)
    if not names:
        return None
    found = [score for run in runs for one in run.ood.values() for score in one.detection]
    scores = tuple(dict.fromkeys([*SCORES.get(runs[0].task, ()), *found]))
    blocks = [(name, _rows(entries, scores, name)) for name in names]
    if len(names) > 1:
        blocks.append((f"mean of {len(names)} sets", _rows(entries, scores, None)))
    about = tuple((SHORT.get(one.name, one.title), one.about, one.better) for one in metrics("detection"))
    chosen = [(entry.name, entry.evaluation.ood_choice) for entry in entries]
    choices = tuple((name, one.why[:1].upper() + one.why[1:]) for name, one in chosen if one is not None)
    return ScoreTable(tuple(map(words, scores)), about, tuple(blocks), choices)


def _rows(entries: Sequence[Entry], scores: Sequence[str], name: str | None) -> tuple[ScoreRow, ...]:
    """A row for each run that was measured on this set; `name` None is the mean, for runs that have seen all sets."""
    everything = set(sets([entry.evaluation for entry in entries]))
    rows = []
    for place, entry in enumerate(entries):
        run = entry.evaluation
        if name in run.ood or (name is None and set(run.ood) == everything):
            rows.append(ScoreRow(entry.name, place, _cells(*_found(run, name), scores)))
    return tuple(rows)


def _found(run: Evaluation, name: str | None) -> tuple[Scores, Scores]:
    if name is not None:
        return run.ood[name].detection, run.ood[name].behind
    mean = averages(run.ood, run.detection)
    return mean.mean, mean.behind


def _cells(found: Scores, behind: Scores, scores: Sequence[str]) -> tuple[Cell, ...]:
    """The best score of the row is marked, metric by metric."""
    measured = metrics("detection")
    marked = {one.name: marks(found, behind, one) for one in measured}
    cells = [
        replace(cell_of(found.get(score, {}).get(one.name), written.decimals), mark=marked[one.name].get(score, ""))
        for score in scores
        for one in measured
    ]
    return tuple(cells)
