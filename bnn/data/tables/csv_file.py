"""Data of your own in a CSV file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from bnn._common.checks import check_bool, fraction_of
from bnn._common.errors import ArgumentError
from bnn._common.text import listed
from bnn.data.dataset import Data, Part, TargetScale, Task
from bnn.data.sources import VALIDATION
from bnn.data.split import Split, inputs_aside, split
from bnn.data.tables.column_kinds import column_kind, warn_of_columns, warn_of_shared_rows, with_numbers
from bnn.data.tables.columns import Column
from bnn.data.tables.preparation import Reading, TablePreparation, learned
from bnn.data.tables.table import Table, is_path
from bnn.data.tables.target import Target, find_target, with_some_target, with_targets
from bnn.data.target_scale import scale_hint

Path = str | os.PathLike[str]


def csv(
    path: Path,
    target: str | Sequence[str],
    *,
    task: Task | None = None,
    test: float | Path | None = 0.2,
    validation: float | None = 0.1,
    guarantee: float | int | None = None,
    seed: int = 0,
    drop: Iterable[str] = (),
    categories: Iterable[str] = (),
    missing: Iterable[str] = (),
    not_missing: Iterable[str] = (),
    unknown: str = "warn",
    drop_missing_target: bool = False,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str = "utf-8-sig",
    positive: bool = False,
) -> Data:
    """A table as data: numbers are scaled, categories spread out, all learned on the training part.

    Args:
        path: a file whose first line names the columns.
        target: the column to predict, or several of numbers, of which a row may miss some.
        task: "classification" or "regression"; None: text and at most 20 different whole numbers are classes.
        test: the fraction of rows to test on (every class keeps its share), or the path of a file with test rows.
        validation: the fraction of rows of `path` to set aside for choosing; None or 0: none.
        guarantee: the share of rows of `path` to set aside for a guarantee (`bnn.conformal`), as 0.1, but at least 50;
            or their number. They are drawn first, and nothing else sees them. None or 0: none.
        seed: of the split, which depends on nothing else.
        drop: columns to leave out.
        categories: columns to read as categories, even if they hold numbers or more than 50 different texts.
        missing: words for a missing value, beside an empty cell, NA, N/A, NaN, null, None and ?.
        not_missing: those of these words that are classes or categories after all, such as "NA" for Namibia.
        unknown: what a category means that training never showed: "warn" (none of them) or "error".
        drop_missing_target: leave out rows without any target, instead of an error.
        delimiter, decimal: "," ";" tab or "|", and "." or ","; None finds out.
        encoding: of the text.
        positive: real targets are above 0, and trained on as (log y - mean) / sd: no mean or interval is below 0.

    Returns:
        Data whose `preparation` (`TablePreparation`) reads new rows: a CSV file, a list of dicts, or a dict of columns.
    """
    reading = Reading(_names(missing), unknown, delimiter, decimal, encoding, _names(not_missing))
    rows = reading.rows(_file(path))
    reading = replace(reading, text_decimal=rows.decimal)
    check_bool("positive", positive)
    names = _targets(target)
    rows = _known(rows, names, reading, task, drop_missing_target)
    kinds = _kinds(rows, names, reading, _names(drop), _names(categories))
    rows = with_numbers(rows, kinds, reading)
    goal = find_target(rows, names, task, reading.words_among_numbers)
    if positive and goal.task == "classification":
        raise ArgumentError(f"positive is for real targets, and {names[0]!r} holds classes", "positive", "task")
    if positive:
        goal.check_above_zero(rows)
    warn_of_columns(rows, kinds, reading.words, names[0], goal.classes)
    other = _known(reading.rows(test), names, reading, goal.task, drop_missing_target) if is_path(test) else None
    if positive and other is not None:
        goal.check_above_zero(other)
    parts = _split(rows, goal, None if other is not None else test, validation, seed, guarantee)
    train = rows.subset(parts.train.tolist(), f"{rows.source} (training part)")
    preparation = learned(train, kinds, reading)
    scale = goal.scale(train, positive) if goal.task == "regression" else None

    def part(chosen: Table | Tensor, label: str) -> Part | None:
        if isinstance(chosen, Tensor):
            chosen = rows.subset(chosen.tolist(), f"{rows.source} ({label} part)")
        return _part(chosen, preparation, goal, scale) if len(chosen) else None

    data = Data(
        name=pathlib.Path(path).name,
        task=goal.task,
        train=_part(train, preparation, goal, scale),
        test=part(parts.test if other is None else other, "test"),
        validation=part(parts.validation, "validation"),
        classes=goal.classes,
        target=scale,
        preparation=preparation,
        guarantee=part(parts.guarantee, "guarantee"),
        targets=names,
        hint=None if scale is None or positive else scale_hint(goal.numbers(train), goal.names),
    )
    warn_of_shared_rows(data)
    return data


def completed(description: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """What the command line adds: the share of validation data; without a target, the columns there are in an error."""
    if "target" not in description:
        columns = ", ".join(Reading().rows(description["csv"]).columns)
        raise ValueError(f"say which column to predict with --target; {description['csv']} has the columns {columns}")
    return {"validation": VALIDATION, **description}


def _names(names: Iterable[str]) -> tuple[str, ...]:
    """One name is as good as a list of one."""
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _file(path: Any) -> Path:
    if not is_path(path):
        raise TypeError(f"path must name a CSV file, got a {type(path).__name__}; bnn.data.arrays takes arrays")
    return path


def _targets(target: Any) -> tuple[str, ...]:
    several = isinstance(target, list | tuple)
    names = tuple(target) if several else (target,)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"target must be the name of one column, or of several in a list, got {target!r}; such as target='price'"
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"target has {listed(map(repr, twice))} more than once, got {list(names)}: name every column once"
        )
    return names


def _known(rows: Table, names: Sequence[str], reading: Reading, task: Task | None, drop: bool) -> Table:
    """The rows that have a target, or one of several."""
    if len(names) > 1:
        return with_some_target(rows, names, reading, drop)
    return with_targets(rows, names[0], reading, task, drop)


def _kinds(
    rows: Table, targets: Sequence[str], reading: Reading, drop: Sequence[str], categories: Sequence[str]
) -> dict[str, type[Column]]:
    """{column: its kind} of all that are predicted from."""
    rows.need([*drop, *categories])
    wrong = [name for name in drop if name in targets or name in categories]
    if wrong:
        one = "the target" if len(targets) == 1 else "a target"
        raise ValueError(f"drop names {wrong[0]!r}, which is {one} or one of categories; it cannot be both")
    names = [name for name in rows.columns if name not in (*targets, *drop)]
    if "" in names:
        raise ArgumentError(
            f"{rows.source}: a column has no name in the first line; name it, or leave it out with drop=['']", "drop"
        )
    if not names:
        raise ValueError(f"{rows.source}: there is no column left to predict {listed(map(repr, targets))} from")
    return {name: column_kind(rows, name, reading, categories) for name in names}


def _split(rows: Table, goal: Target, test: Any, validation: Any, seed: int, guarantee: Any) -> Split:
    fractions = fraction_of(test, "test"), fraction_of(validation, "validation")
    labels = goal.labels(rows) if goal.task == "classification" else None
    aside = inputs_aside(guarantee, len(rows), rows.source)
    return split(len(rows), *fractions, seed, labels, goal.classes, rows.source, aside)


def _part(rows: Table, preparation: TablePreparation, goal: Target, scale: TargetScale | None) -> Part:
    x = preparation.encode(rows)
    return Part(x, goal.labels(rows) if scale is None else scale.scaled(goal.numbers(rows)).float())
