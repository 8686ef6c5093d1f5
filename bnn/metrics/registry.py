"""Which metrics there are, and how each is called, read and written: evaluation, report and docs ask here.

A metric joins by the decorator `metric`. What it is given is told by the names of its parameters:

    classification    probs (N, C), labels (N,), bins; temperature, where one was learned
    regression        mean, sd, targets (N, ...), where of several a missing one is NaN; draws: means and sds
                      (K, N, ...), or None; scale: "log" where draws are of log targets, else "linear"; losses: -log p
                      of every datum (N,), where only the likelihood can tell; low, high (N, ...) of the central
                      interval at each level, and level
    detection         scores_in (N,), scores_out (M,)

One that needs more than is there is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from bnn._common.checks import check_choice
from bnn.metrics.resampling import RESAMPLED, BinGaps, Statistic, mean_of, one_by_one

GIVEN = {  # what a metric may ask for, by task
    "classification": ("probs", "labels", "bins", "temperature"),
    "regression": ("mean", "sd", "targets", "draws", "scale", "df", "losses", "low", "high", "level"),
    "detection": ("scores_in", "scores_out"),
}
FORMATS = ("percent", "decimals", "figures")  # as 97.2 %, 0.123, and three significant digits
LEVEL = 0.9  # of intervals, that a report shows
UNEQUAL = "unequal"  # shown where classes are not equally frequent
_OPTIONS = ("bins", "temperature", "level", "scale", "df")  # no rows to resample

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        name: as in `Evaluation.metrics`.
        function: what measures it, from what its parameters name: a number, or one for each datum (N,), whose mean the
            metric then is, without those that are NaN.
        task: "classification", "regression" or "detection".
        title: as people read it.
        about: what it is, in half a sentence.
        better: "higher", "lower", a number (the nearest to it is best), or "level" for that of the interval.
        format: "percent", "decimals" or "figures".
        shown: whether comparisons of runs have a column for it; "unequal": where classes are not equally frequent.
        brief: whether it is one of the few that are measured where there are many sets, as under corruptions.
        own_units: whether it is in the target's own units, so that of several targets each has a number of its own.
    """

    name: str
    function: Callable[..., Any]
    task: str
    title: str
    about: str
    better: str | float
    format: str
    shown: bool | str
    brief: bool
    own_units: bool = False

    @property
    def takes(self) -> list[str]:
        """What it can use."""
        return list(inspect.signature(self.function).parameters)

    @property
    def needs(self) -> set[str]:
        """What it cannot do without."""
        parameters = inspect.signature(self.function).parameters.values()
        return {one.name for one in parameters if one.default is inspect.Parameter.empty}

    @property
    def of_intervals(self) -> bool:
        """Whether it is measured at every level of intervals."""
        return bool(self.needs & {"low", "high", "level"})

    def at(self, level: float) -> Metric:
        """That of the intervals of this level."""
        percent = f"{100 * level:g}"
        better = level if self.better == "level" else self.better
        about = self.about.replace("{level}", percent)
        return replace(
            self, name=f"{self.name}_{percent}", title=f"{percent} % {self.title}", about=about, better=better
        )

    def measured(self, given: Mapping[str, Any]) -> tuple[float, Statistic | BinGaps]:
        """Its value, and what gives its value on resamples."""
        arguments = {name: given[name] for name in self.takes if given.get(name) is not None}
        found = self.function(**arguments)
        if np.ndim(found) == 1:
            rows = np.asarray(found, dtype=np.float64)
            return float(np.nanmean(rows)), mean_of(rows)
        known = RESAMPLED.get(self.function)
        return float(found), _repeated(self.function, arguments) if known is None else known.make(**arguments)


_REGISTERED: dict[tuple[str, str], Metric] = {}


def metric(
    task: str,
    title: str,
    about: str,
    better: str | float = "lower",
    format: str = "decimals",
    *,
    name: str | None = None,
    shown: bool | str = True,
    brief: bool = False,
    own_units: bool = False,
) -> Callable[[Function], Function]:
    """Registers a function as a metric; arguments as for `Metric`, `name` by default that of the function.

    Raises:
        TypeError, ValueError: it asks for what no metric of its task is given, or there is one of this name.
    """
    check_choice("task", task, list(GIVEN))
    check_choice("format", format, list(FORMATS))
    if not isinstance(better, float):
        check_choice("better", better, ["higher", "lower", "level"])
    if not isinstance(shown, bool):
        check_choice("shown", shown, [UNEQUAL])

    def join(function: Function) -> Function:
        one = Metric(name or function.__name__, function, task, title, about, better, format, shown, brief, own_units)
        unknown = [each for each in one.takes if each in one.needs and each not in GIVEN[task]]
        if unknown:
            raise TypeError(f"the metric {one.name!r} asks for {unknown}; one of {task} is given {list(GIVEN[task])}")
        before = _REGISTERED.get((task, one.name))
        if before is not None and _place(before.function) != _place(function):
            raise ValueError(f"there is a metric {one.name!r} of {task} already, {before.function.__module__}")
        _REGISTERED[task, one.name] = one
        return function

    return join


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def metrics(task: str) -> list[Metric]:
    """All metrics of a task, in the order in which they were defined."""
    return [one for one in _REGISTERED.values() if one.task == task]


def shown(task: str, unequal: bool = False) -> list[Metric]:
    """Those that a comparison of runs shows; of intervals at 90 %.

    Args:
        unequal: whether some classes are much rarer than others.
    """
    wanted = [one for one in metrics(task) if (unequal if one.shown == UNEQUAL else one.shown)]
    return [one.at(LEVEL) if one.of_intervals else one for one in wanted]


def find(task: str, name: str) -> Metric | None:
    """The metric of this name, also `coverage_90` and the like; None if it is not known."""
    if (task, name) in _REGISTERED:
        return _REGISTERED[task, name]
    start, _, level = name.rpartition("_")
    one = _REGISTERED.get((task, start))
    return one.at(float(level) / 100) if one is not None and one.of_intervals and _is_number(level) else None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def table() -> list[str]:
    """The table of docs/metrics.md, row by row: a test compares the two."""
    rows = ["| name | task | title | good | what it is |", "|---|---|---|---|---|"]
    for one in [one for task in GIVEN for one in metrics(task)]:
        name = f"`{one.name}_90` and the like" if one.of_intervals else f"`{one.name}`"
        good = {"higher": "high", "lower": "low", "level": "near the level"}.get(str(one.better), f"near {one.better}")
        about = one.at(LEVEL).about
        rows.append(f"| {name} | {one.task} | {one.title} | {good} | {about} |")
    return rows


def _repeated(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Statistic:
    """Of any function of arrays, whose rows are repeated as often as their counts say."""

    def of_one(*counts: Any) -> float:
        rows = [np.repeat(np.arange(len(one)), one.astype(np.intp)) for one in counts]
        return float(function(**{name: _taken(name, value, rows) for name, value in arguments.items()}))

    return one_by_one(of_one)


def _taken(name: str, value: Any, rows: list[Any]) -> Any:
    """The rows of one argument; those of `draws` are along dimension 1, those of `scores_out` a group of their own."""
    if name == "draws":
        return tuple(np.asarray(one)[:, rows[0]] if np.ndim(one) else one for one in value)
    if name in _OPTIONS or np.ndim(value) == 0:
        return value
    return np.asarray(value)[rows[1 if name == "scores_out" else 0]]
