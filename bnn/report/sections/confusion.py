"""Which class is taken for which, class by class: the confusion matrix, and the sentences about classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.evaluation.classes import class_rows, never_said, percent, shown_results
from bnn.evaluation.pieces import Classes
from bnn.plots.confusion import matrix_size
from bnn.report.entry import Entry
from bnn.report.sections.picture import Drawn, Picture, slug

SECTION = "classes"
READABLE = 20  # classes whose matrix can be read
BARS = 12  # mistakes that are drawn instead
FEW, WORST = 20, 10  # classes of which the table has all, and how many it has of more

MATRIX = (
    "Each row is a true class and each column what it is taken for: how many test inputs, and below it the share of "
    "the row, so that what is off the diagonal are mistakes, and an empty column is a class that is never predicted."
)
MISTAKES = (
    "The most frequent mistakes, true class → predicted class: how many test inputs, and what share of the true class."
)


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """The confusion matrix of each run; of more than 20 classes its most frequent mistakes."""
    for run in runs:
        found = run.evaluation.classes
        if found is None:
            continue
        if len(found.results) <= READABLE and found.confusion:
            yield _matrix(run, found)
        elif found.mistakes:
            yield _mistakes(run, found)


def _matrix(run: Drawn, found: Classes) -> Picture:
    names = [one.name for one in found.results]

    def draw(axes: Any) -> None:
        plots.confusion_matrix(axes, found.confusion, names, color=run.color)

    facts = "; ".join(f"{one.name}: {percent(one.recall)} found" for one in found.results if one.inputs)
    key, title = f"confusion-{slug(run.name)}", f"Confusion matrix of {run.name}"
    return Picture(SECTION, key, title, MATRIX, facts, draw, size=matrix_size(names))


def _mistakes(run: Drawn, found: Classes) -> Picture:
    most = found.mistakes[:BARS]

    def draw(axes: Any) -> None:
        plots.frequent_mistakes(axes, most, color=run.color)

    facts = "; ".join(f"{one.true} for {one.predicted}: {one.inputs}" for one in most)
    key, title = f"mistakes-{slug(run.name)}", f"Most frequent mistakes of {run.name}"
    return Picture(SECTION, key, title, MISTAKES, facts, draw, size=(4.4, 0.8 + 0.24 * len(most)))


def tables(entries: Sequence[Entry]) -> Iterator[tuple[str, list[list[str]]]]:
    """A table for each run, its title and its rows, the header first."""
    for entry in entries:
        found = entry.evaluation.classes
        if found is None:
            continue
        results = shown_results(found, FEW, WORST)
        of = "" if len(results) == len(found.results) else f", the {len(results)} of {len(found.results):,} found least"
        yield f"{entry.name}, class by class{of}", class_rows(found, results)


def sentences(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Run and sentence: classes that are never predicted, and what class weights do to probabilities."""
    return [(entry.name, text) for entry in entries for text in entry.evaluation.about_classes]


def warnings(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Run and sentence about the classes that it never predicts, without what to do about them."""
    found = [(entry.name, entry.evaluation.classes) for entry in entries]
    said = [(name, never_said(classes, advice=False)) for name, classes in found if classes is not None]
    return [(name, text) for name, text in said if text is not None]
