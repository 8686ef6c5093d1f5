"""Runs side by side: the numbers once, for the terminal, for JSON and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bnn.evaluation import Evaluation
from bnn.evaluation.detection import SCORES, averages, words
from bnn.evaluation.pieces import Uncertainty
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.metrics.registry import Metric, shown
from bnn.report.entry import Entry, named_apart

KINDS = {"epistemic": "epistemic"}  # columns whose title is the name of a set of inputs
QUALITY = "on test inputs"  # the group of the metrics
SAME_TIME = 1.1  # times that differ by less are not told apart
MARKS = {"best": "*", "same": "~", "": ""}


@dataclass(frozen=True)
class Cell:
    """One number of one run.

    Args:
        value: the number; None where it was not measured.
        low, high: its 95 % interval, where it has one.
        text, small: as it is shown, and what stands below it in small print.
        mark: "best" of its column, "same" for about as good as the best, or "".
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = "-"
    small: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """One number of every run.

    Args:
        key: its name in JSON.
        group, title: what stands above it, and above several such columns.
        about: what it is, in half a sentence.
        better: "higher", "lower", a number (the nearest to it is best), or None where there is no better.
        cells: one for each run.
        of: of an AUROC the set of inputs and the score, ("letters", "entropy"); the mean over sets has none: ("", ...).
        detail: whether a page shows it elsewhere, in its section, and the mean over such columns here.
    """

    key: str
    group: str
    title: str
    about: str
    better: str | float | None
    cells: tuple[Cell, ...]
    of: tuple[str, str] | None = None
    detail: bool = False

    @property
    def full_title(self) -> str:
        """What it is called where no group stands above it."""
        if self.of is not None:
            return f"AUROC {self.of[0] or 'on average'} by {words(self.of[1])}"
        kind = self.key.partition(":")[0]
        return f"{KINDS[kind]} {self.title}" if kind in KINDS else self.title


@dataclass(frozen=True)
class Comparison:
    """Runs on the same data. Rows are runs, columns are numbers; the best of each column is marked."""

    data: str
    task: str
    inputs: int  # that were scored; the most, where runs differ
    fewest: int
    runs: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, key: str) -> Column | None:
        """The column of this name, if something was measured for it."""
        return next((one for one in self.columns if one.key == key), None)

    @property
    def header(self) -> list[str]:
        """What stands above the columns of `rows`."""
        return ["run", *(column.full_title for column in self.columns)]

    @property
    def rows(self) -> list[list[str]]:
        """Text for a terminal: `*` is the best of a column, `~` of an interval that overlaps its."""
        cells = [[f"{cell.text}{MARKS[cell.mark]}" for cell in column.cells] for column in self.columns]
        return [[name, *(column[i] for column in cells)] for i, name in enumerate(self.runs)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: {"data", "task", "inputs", "runs": {name: {column: {"value", "low", "high", "mark"}}}}."""
        runs = {name: {c.key: _plain(c.cells[i]) for c in self.columns} for i, name in enumerate(self.runs)}
        return {"data": self.data, "task": self.task, "inputs": self.inputs, "runs": runs}


def _plain(cell: Cell) -> dict[str, Any]:
    interval = {} if cell.low is None else {"low": cell.low, "high": cell.high}
    return {"value": cell.value, **interval, "mark": cell.mark}


def comparison(entries: Sequence[Entry]) -> Comparison:
    """The numbers of runs on the same data, side by side, the best of each column marked.

    Raises:
        ValueError: there are none, or they are of different data or tasks (`grouped` takes these apart).
    """
    if not entries:
        raise ValueError("expected at least one run to compare, got none")
    kinds = list(dict.fromkeys((one.evaluation.data, one.evaluation.task) for one in entries))
    if len(kinds) > 1:
        found = ", ".join(f"{data} ({task})" for data, task in kinds)
        raise ValueError(f"expected runs on the same data, got {found}: compare the groups of bnn.report.grouped")
    found_in = [entry.evaluation for entry in entries]
    data, task = kinds[0]
    inputs = [one.inputs for one in found_in]
    names = tuple(one.name for one in named_apart(entries))
    return Comparison(data, task, max(inputs), min(inputs), names, tuple(map(marked, columns_of(found_in))))


def marked(column: Column) -> Column:
    """Marks the best cell, and those about as good: of an interval that overlaps the best one's."""
    measured = [cell for cell in column.cells if cell.value is not None]
    if column.better is None or len(measured) < 2:
        return column
    best = min(measured, key=lambda cell: _rank(cell, column.better))
    return replace(column, cells=tuple(replace(c, mark=_mark(c, best, column)) for c in column.cells))


def _rank(cell: Cell, better: str | float | None) -> float:
    assert cell.value is not None
    if isinstance(better, float):
        return abs(cell.value - better)
    return -cell.value if better == "higher" else cell.value


def _mark(cell: Cell, best: Cell, column: Column) -> str:
    if cell.value is None or best.value is None:
        return ""
    if cell is best or _rank(cell, column.better) == _rank(best, column.better):
        return "best"
    if column.key == "time":
        return "same" if cell.value <= SAME_TIME * best.value else ""
    if cell.low is None or cell.high is None or best.low is None or best.high is None:
        return ""
    return "same" if cell.low <= best.high and best.low <= cell.high else ""


def columns_of(runs: Sequence[Evaluation]) -> list[Column]:
    """All columns in which something was measured, nothing marked yet."""
    found = [*_size(runs), *_quality(runs), *_ood(runs), *_epistemic(runs), *_time(runs)]
    return [column for column in found if any(cell.value is not None for cell in column.cells)]


def _size(runs: Sequence[Evaluation]) -> Iterator[Column]:
    cells = [Cell(r.size.parameters, text=f"{r.size.parameters:,}", small=_share(r)) for r in runs]
    yield Column("parameters", "size", "parameters", "all that is trained and stored", "lower", tuple(cells))
    cells = [Cell(r.draws, text="1 pass" if r.draws == 1 else str(r.draws)) for r in runs]
    yield Column("draws", "size", "draws", "networks drawn for every prediction", None, tuple(cells))


def _share(run: Evaluation) -> str:
    return f"{written.percent(run.size.ratio, 0)} of plain" if run.size.parameters != run.size.plain else "plain"


def _quality(runs: Sequence[Evaluation]) -> Iterator[Column]:
    unequal = any(run.classes is not None and run.classes.unequal for run in runs)
    for one in shown(runs[0].task, unequal):
        for key, title, found in measured(one, runs):
            cells = tuple(cell_of(each, written.FORMATS[one.format]) for each in found)
            yield Column(key, QUALITY, title, one.about, one.better, cells)


def measured(one: Metric, runs: Sequence[Evaluation]) -> Iterator[tuple[str, str, list[Interval | None]]]:
    """Key, title, and the interval of each run; in own units, of several targets each by itself."""
    names = target_names(runs) if one.own_units else []
    if not names:
        yield one.name, one.title, [run.metrics.get(one.name) for run in runs]
    for name in names:
        scores = [run.by_target.get(name) for run in runs]
        found = [None if each is None else each.metrics.get(one.name) for each in scores]
        yield f"{one.name}:{name}", f"{one.title} of {name}", found


def target_names(runs: Sequence[Evaluation]) -> list[str]:
    """The several real targets of runs; empty where there is one."""
    return list(dict.fromkeys(name for run in runs for name in run.by_target))


def _ood(runs: Sequence[Evaluation]) -> Iterator[Column]:
    """The AUROC by every score: the mean over the sets that all runs have seen, if there are several, and each set."""
    seen = [set(run.ood) for run in runs if run.ood]
    common = [name for name in sets(runs) if all(name in one for one in seen)]
    scores = list(dict.fromkeys(score for run in runs for one in run.ood.values() for score in one.detection))
    scores.sort(key=lambda score: SCORES[runs[0].task].index(score) if score in SCORES[runs[0].task] else len(SCORES))
    several = len(common) > 1
    for score in scores if several else ():
        cells = tuple(cell_of(mean_auroc(run, common, score), written.decimals) for run in runs)
        about = f"how often an out-of-distribution input has more {words(score)} than a test input, mean over sets"
        group = f"AUROC, mean of {len(common)} sets"
        yield Column(f"auroc:{score}", group, f"by {words(score)}", about, "higher", cells, ("", score))
    for name in sets(runs):
        for score in scores:
            found = [run.ood[name].detection.get(score, {}).get("auroc") if name in run.ood else None for run in runs]
            cells = tuple(cell_of(one, written.decimals) for one in found)
            about = (
                f"how often an input of {name} has more {words(score)} than a test input: 1 is always, 0.5 is chance"
            )
            key, title = f"auroc:{score}:{name}", f"by {words(score)}"
            yield Column(key, f"AUROC of {name}", title, about, "higher", cells, (name, score), detail=several)


def mean_auroc(run: Evaluation, names: Sequence[str], score: str) -> Interval | None:
    """Over these sets; None if the run has not seen them, or the score says nothing about one of them."""
    if not set(names) <= run.ood.keys():
        return None
    own = run.detection if set(names) == run.ood.keys() else None
    return averages({name: run.ood[name] for name in names}, own).mean.get(score, {}).get("auroc")


def _epistemic(runs: Sequence[Evaluation]) -> Iterator[Column]:
    unit = "nats" if runs[0].task == "classification" else "sd, own units"
    group, about = f"epistemic ({unit})", "how much the draws disagree about "
    names: list[str | None] = [*target_names(runs)] or [None]
    for name in names:
        key, behind = ("", "") if name is None else (f":{name}", f", {name}")
        inside = tuple(_amount(run, _of(run.uncertainty, run.unsure_by_target, name)) for run in runs)
        test = f"epistemic:test{key}" if key else "epistemic"
        yield Column(test, group, f"test{behind}", f"{about}test inputs{behind}", None, inside)
        found = [[_of(one.uncertainty, one.by_target, name) for one in run.ood.values()] for run in runs]
        cells = tuple(_amount(run, _mean(values)) for run, values in zip(runs, found, strict=True))
        others = f"{about}inputs of all other sets{behind}"
        yield Column(f"epistemic:ood{key}", group, f"out of distribution{behind}", others, None, cells)


def _of(joint: Uncertainty, each: Mapping[str, Uncertainty], name: str | None) -> float | None:
    """The epistemic uncertainty of a target, or of all where there is one alone."""
    if name is None:
        return joint.epistemic
    return each[name].epistemic if name in each else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _amount(run: Evaluation, value: float | None) -> Cell:
    """One pass has no draws that could disagree."""
    return Cell(None) if run.draws < 2 or value is None else Cell(value, text=written.figures(value, 2))


def _time(runs: Sequence[Evaluation]) -> Iterator[Column]:
    cells = []
    for run in runs:
        if run.time is None:
            cells.append(Cell(None))
            continue
        thousand = 1000 * run.time.seconds / run.time.inputs
        small = "plain" if is_plain(run) else ""
        if run.time.plain and not is_plain(run):
            small = f"{written.figures(run.time.seconds / run.time.plain, 2)} times plain"
        cells.append(Cell(thousand, text=written.seconds(thousand), small=small))
    about = "to predict 1000 inputs with all draws; beside it the ratio to one pass of the plain network"
    yield Column("time", "time", "per 1000 inputs", about, "lower", tuple(cells))


def is_plain(run: Evaluation) -> bool:
    """Whether it is a plain network, in one pass: its time is that of itself."""
    return run.draws == 1 and run.size.networks == 1 and run.size.parameters == run.size.plain


def sets(runs: Sequence[Evaluation]) -> list[str]:
    """The sets of out-of-distribution inputs that any run has seen."""
    return list(dict.fromkeys(name for run in runs for name in run.ood))


def cell_of(found: Interval | None, text: Callable[..., str]) -> Cell:
    """A number with its interval in small print; without one an empty cell."""
    if found is None or found.value != found.value:
        return Cell(None)
    small = f"[{text(found.low, bare=True)}, {text(found.high, bare=True)}]"
    return Cell(found.value, found.low, found.high, text(found.value), small)
