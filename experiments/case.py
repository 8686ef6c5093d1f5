"""A case: what an experiment asks, and every run that answers it, from one TOML file in `experiments/cases`.

title, asks       the heading, and the question in one sentence
experiment        "module:function" in this folder: settings (a dict) -> metrics (a dict of numbers; arrays of scores,
                  one entry per input, under "per_input")
[fixed]           settings that all runs share
[[grid]]          lists of settings, one per axis; a grid is all their combinations, a case may have several
[baseline]        settings that lead from a run to the one it is compared with, input by input
[table]           rows (an axis), and columns (an axis) of one metric, or metrics (a table of names and headings);
                  tables (an axis, or several): one table for each value; labels; paired: rows to compare with the
                  baseline
[picture]         kind, one of `experiments/pictures.py`, and what it needs; file: its name in docs/images;
                  whole: only when no run is missing; readme: what the README says below it
further           "module:function": the case and its runs (a list of records) -> lines of the page below the tables
measured, says, limits      text for the page; figures in it may be looked up (`experiments/pages.py`)
readme            text for the README, likewise, between <!-- name of the case --> and <!-- end -->

An experiment that trains keeps its checkpoints in `experiments.nets.folder(...)`, so that it can resume.
"""

from __future__ import annotations

import importlib
import itertools
import pathlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HERE = pathlib.Path(__file__).parent
CASES, RESULTS = HERE / "cases", HERE / "results"
KEYS = {"title", "asks", "experiment", "fixed", "grid", "baseline", "table", "picture", "says", "measured", "limits"}
KEYS |= {"further", "readme"}

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A case file, read and checked."""

    name: str
    title: str
    asks: str
    experiment: str
    grid: list[dict[str, list[Any]]]
    fixed: Settings = field(default_factory=dict)
    baseline: Settings = field(default_factory=dict)
    table: Settings = field(default_factory=dict)
    picture: Settings = field(default_factory=dict)
    further: str = ""
    says: str = ""
    measured: str = ""
    limits: str = ""
    readme: str = ""

    @classmethod
    def read(cls, path: pathlib.Path) -> Case:
        """The case in a file; a name that it does not know is a ValueError."""
        stored = toml(path)
        if unknown := sorted(stored.keys() - KEYS):
            raise ValueError(f"{path.name}: unknown {unknown}; expected some of {sorted(KEYS)}")
        if missing := sorted({"title", "asks", "experiment", "grid"} - stored.keys()):
            raise ValueError(f"{path.name}: {missing} missing")
        case = cls(path.stem, **stored)
        keys = [case.key(axes) for axes in case.runs()]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{path.name}: the grids overlap: {sorted({key for key in keys if keys.count(key) > 1})}")
        return case

    @classmethod
    def named(cls, name: str) -> Case:
        """A case by its name, or by the path of its file."""
        path = pathlib.Path(name) if name.endswith(".toml") else CASES / f"{name}.toml"
        if not path.exists():
            known = sorted(one.stem for one in CASES.glob("*.toml"))
            raise ValueError(f"no case {name!r}; expected one of {known}, or a .toml file")
        return cls.read(path)

    def runs(self) -> list[Settings]:
        """The axes of every run, in the order of the file."""
        return [
            dict(zip(grid, values, strict=True)) for grid in self.grid for values in itertools.product(*grid.values())
        ]

    def settings(self, axes: Mapping[str, Any]) -> Settings:
        """All settings of a run."""
        return {**self.fixed, **axes}

    def key(self, axes: Mapping[str, Any]) -> str:
        """The name of a run among those of its case.

        >>> Case("a", "", "", "", []).key({"net": "mlp", "fraction": 0.25})
        'net=mlp fraction=0.25'
        """
        return " ".join(f"{name}={value}" for name, value in axes.items())

    def baseline_key(self, axes: Mapping[str, Any]) -> str | None:
        """The run that a run is compared with; None for one that is its own baseline, or where there is none."""
        wanted = {**axes, **self.baseline}
        fitting = [one for one in self.runs() if all(wanted.get(axis) == value for axis, value in one.items())]
        if not self.baseline or not fitting:
            return None
        key = self.key(max(fitting, key=len))  # one without an axis (a network has no fraction) serves all its values
        return key if key != self.key(axes) else None

    def function(self) -> Callable[[Settings], dict[str, Any]]:
        """What runs it."""
        return function(self.experiment)

    def further_lines(self, runs: list[dict[str, Any]]) -> list[str]:
        """What `further` says about the runs; nothing where there is none."""
        return function(self.further)(self, runs) if self.further else []


def toml(path: pathlib.Path) -> dict[str, Any]:
    """What a TOML file holds."""
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return reader.loads(path.read_text(encoding="utf-8"))


def function(name: str) -> Callable[..., Any]:
    """The function of this folder that "module:function" names."""
    module, _, inside = name.partition(":")
    return getattr(importlib.import_module(f"experiments.{module}"), inside)
