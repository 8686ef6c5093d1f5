"""The numbers a comparison shows, and how each is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bnn.evaluation import Evaluation
from bnn.metrics.bootstrap import Interval
from bnn.report import numbers

SCORES = {"classification": "entropy", "regression": "total"}  # of out-of-distribution inputs: all uncertainty
KINDS = {"auroc": "AUROC", "epistemic": "epistemic"}  # columns whose title is the name of a set of inputs
WORDS = {"entropy": "entropy", "total": "total uncertainty"}


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
    """

    key: str
    group: str
    title: str
    about: str
    better: str | float | None
    cells: tuple[Cell, ...]

    @property
    def full_title(self) -> str:
        """What it is called where no group stands above it."""
        kind = self.key.partition(":")[0]
        return f"{KINDS[kind]} {self.title}" if kind in KINDS else self.title


def columns_of(runs: Sequence[Evaluation]) -> list[Column]:
    """All columns in which something was measured, nothing marked yet."""
    found = [*_size(runs), *_quality(runs), *_outside(runs), *_epistemic(runs), *_time(runs)]
    return [column for column in found if any(cell.value is not None for cell in column.cells)]


def _size(runs: Sequence[Evaluation]) -> Iterator[Column]:
    cells = [Cell(r.size.parameters, text=f"{r.size.parameters:,}", small=_share(r)) for r in runs]
    yield Column("parameters", "size", "parameters", "all that is trained and stored", "lower", tuple(cells))
    cells = [Cell(r.draws, text="1 pass" if r.draws == 1 else str(r.draws)) for r in runs]
    yield Column("draws", "size", "draws", "networks drawn for every prediction", None, tuple(cells))


def _share(run: Evaluation) -> str:
    return f"{numbers.percent(run.size.ratio, 0)} of plain" if run.size.parameters != run.size.plain else "plain"


def _quality(runs: Sequence[Evaluation]) -> Iterator[Column]:
    kinds = numbers.CLASSES if runs[0].task == "classification" else numbers.REALS
    group = "on test inputs"
    for kind in kinds:
        cells = tuple(_cell(run.metrics.get(kind.key), kind.text) for run in runs)
        yield Column(kind.key, group, kind.title, kind.about, kind.better, cells)


def _outside(runs: Sequence[Evaluation]) -> Iterator[Column]:
    score = SCORES[runs[0].task]
    for name in sets(runs):
        found = [run.ood[name].detection.get(score, {}).get("auroc") if name in run.ood else None for run in runs]
        cells = tuple(_cell(one, numbers.decimals) for one in found)
        about = f"how often an input of {name} has more {WORDS[score]} than a test input: 1 is always, 0.5 is chance"
        yield Column(f"auroc:{name}", f"AUROC by {WORDS[score]}", name, about, "higher", cells)


def _epistemic(runs: Sequence[Evaluation]) -> Iterator[Column]:
    unit = "nats" if runs[0].task == "classification" else "variance"
    group, about = f"epistemic ({unit})", "how much the draws disagree about "
    inside = tuple(_amount(run, run.uncertainty.epistemic) for run in runs)
    yield Column("epistemic", group, "test", about + "test inputs", None, inside)
    found = [[one.uncertainty.epistemic for one in run.ood.values()] for run in runs]
    means = [sum(values) / len(values) if values else None for values in found]
    cells = tuple(_amount(run, one) for run, one in zip(runs, means, strict=True))
    yield Column("epistemic:ood", group, "OOD", f"{about}out-of-distribution inputs, all sets", None, cells)


def _amount(run: Evaluation, value: float | None) -> Cell:
    """One pass has no draws that could disagree."""
    return Cell(None) if run.draws < 2 or value is None else Cell(value, text=numbers.figures(value, 2))


def _time(runs: Sequence[Evaluation]) -> Iterator[Column]:
    cells = []
    for run in runs:
        if run.time is None:
            cells.append(Cell(None))
            continue
        thousand = 1000 * run.time.seconds / run.time.inputs
        ratio = run.time.seconds / run.time.plain if run.time.plain else None
        small = "" if ratio is None else f"{numbers.figures(ratio, 2)} times plain"
        cells.append(Cell(thousand, text=numbers.seconds(thousand), small=small))
    about = "to predict 1000 inputs with all draws; beside it the ratio to one pass of the plain network"
    yield Column("time", "time", "per 1000 inputs", about, "lower", tuple(cells))


def sets(runs: Sequence[Evaluation]) -> list[str]:
    """The sets of out-of-distribution inputs that any run has seen."""
    return list(dict.fromkeys(name for run in runs for name in run.ood))


def _cell(found: Interval | None, text: Callable[..., str]) -> Cell:
    if found is None or found.value != found.value:
        return Cell(None)
    small = f"[{text(found.low, bare=True)}, {text(found.high, bare=True)}]"
    return Cell(found.value, found.low, found.high, text(found.value), small)
