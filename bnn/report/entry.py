"""What a report knows about one run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bnn.data.dataset import TargetScale
from bnn.evaluation import Evaluation
from bnn.train.runs.folder import EVALUATION, RECIPE, RUN, RunFolder
from bnn.train.units import Units


@dataclass(frozen=True)
class Entry:
    """One run of a report.

    Args:
        name: what the report calls it.
        evaluation: what `bnn.evaluate` found.
        recipe: how to train it again, as `Recipe.to_dict` gives it; None if it is not known.
        training: the epochs of each stage, by the stage's name, as `History.epochs` or a metrics.jsonl hold them; where
            the folder of a run says how its target was scaled, in the target's own units.
        units: in which units an RMSE of `training` is, where these are not the target's own.
        part_of: the name of the run of whose training it is the first stage, in whose recipe its own is.
    """

    name: str
    evaluation: Evaluation
    recipe: dict[str, Any] | None = None
    training: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    units: str = ""
    part_of: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"a run needs a name that can be read, got {self.name!r}")
        if not isinstance(self.evaluation, Evaluation):
            kind = type(self.evaluation).__name__
            raise TypeError(f"{self.name}: expected what bnn.evaluate returns, an Evaluation; got a {kind}")


def read_entry(folder: str | os.PathLike[str], name: str | None = None) -> Entry:
    """A run from its folder: its evaluation, its recipe where there is one, and every metrics.jsonl below.

    Args:
        folder: what `bnn.train.run_recipe` wrote, with the evaluation.json of `Evaluation.save` in it.
        name: what the report calls it; None is the folder's name.

    Raises:
        FileNotFoundError: there is no such folder, or no evaluation in it.
        ValueError: a file cannot be read.
    """
    place = RunFolder(folder)
    if not os.path.isdir(place):
        raise FileNotFoundError(f"there is no folder {place}; name the folder of a run")
    if not place.has(EVALUATION):
        raise FileNotFoundError(f"{place} holds no {EVALUATION}; run `bayesianize evaluate {place}` first")
    units = _units(place)
    return Entry(
        name=name or os.path.basename(os.path.realpath(place)),
        evaluation=Evaluation.load(place.file(EVALUATION)),
        recipe=place.read(RECIPE),
        training={stage: [_shown(one, units) for one in epochs] for stage, epochs in place.training().items()},
        units=units.note,
    )


def _units(place: RunFolder) -> Units:
    """Those of the run's target; of a run without one, the numbers as they are."""
    stored, recipe = place.read(RUN) or {}, place.read(RECIPE) or {}
    target = stored.get("target")
    scale = None if target is None else TargetScale.from_dict(target)
    return Units.of(scale, recipe.get("teacher") is not None)


def _shown(epoch: dict[str, Any], units: Units) -> dict[str, Any]:
    return {name: units.shown(name, one) if isinstance(one, float) else one for name, one in epoch.items()}


def grouped(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Runs that can be compared: those of the same data and task, in the order in which they come.

    Raises:
        ValueError: there are none.
    """
    if not entries:
        raise ValueError("a report needs at least one run, got none: name the folder of a run")
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in named_apart(entries):
        groups.setdefault((entry.evaluation.data, entry.evaluation.task), []).append(entry)
    return list(groups.values())


def named_apart(entries: Sequence[Entry]) -> list[Entry]:
    """The same runs, no two of the same name: the second `a` is `a (2)`."""
    taken: set[str] = set()
    apart = []
    for entry in entries:
        name, count = entry.name, 1
        while name in taken:
            count += 1
            name = f"{entry.name} ({count})"
        taken.add(name)
        apart.append(replace(entry, name=name))
    return apart
