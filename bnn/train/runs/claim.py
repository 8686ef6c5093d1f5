"""One folder, one recipe: whether a recipe may start, or resume, in a folder."""

from __future__ import annotations

import json
import os
from typing import Any

from bnn._common.errors import OptionError, braced
from bnn._common.text import listed
from bnn.files import FileFormatError
from bnn.train.recipe import Recipe
from bnn.train.runs.folder import KL, RECIPE, RUN, TRAIN, RunFolder
from bnn.train.schedule import ADDED

LATER = ("method", "schedule", "kl_weights", "global_inducing")  # what pretraining does not depend on
MAY_CHANGE = ("name", "about", "ours", "schedule.epochs", "schedule.patience")
ANOTHER = "choose another folder with {out}, or delete this one to start again"


def check_free(folder: RunFolder, recipe: Recipe) -> None:
    """An error unless `recipe` may start, or resume, in `folder`; it says what differs.

    Raises:
        ValueError: there is another run, or its files are damaged.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise OptionError("{out} is a file; expected a folder, which need not exist", out=folder.path)
    if folder.has(RUN) and not folder.has(RECIPE):
        raise OptionError(f"{braced(folder)} holds a run of bnn.fit; {ANOTHER}", out=None)
    different = differing(folder, recipe)
    if different:
        shown = braced(listed(different))
        raise OptionError(f"{braced(folder)} holds a run of another recipe: {shown}; {ANOTHER}", out=None)


def is_finished(folder: RunFolder, recipe: Recipe) -> bool:
    """Whether `folder` holds the run of this very recipe, finished."""
    stored = _read(folder, RUN)
    if stored is None or not isinstance(stored.get("recipe"), dict):
        return False
    now = _as_stored(recipe)
    if recipe.kl_weights:  # the one that was chosen is in its place
        now["schedule"]["kl_weight"] = stored["recipe"]["schedule"]["kl_weight"]
    return bool(stored["recipe"] == now)


def differing(folder: RunFolder, recipe: Recipe) -> list[str]:
    """What forbids `recipe` to resume in `folder`, one line per value."""
    before = _read(folder, RECIPE)
    if before is None or not folder.saved(""):  # it ended before its first checkpoint: nothing is lost
        return []
    now = _as_stored(recipe)
    found = differences(before, now)
    if not folder.saved(TRAIN, KL):  # pretraining alone: what comes after it may still change
        return [one for one in found if not one.startswith(LATER)]
    epochs = [one.get("schedule", {}).get("epochs") for one in (before, now)]
    if recipe.schedule.cosine and epochs[0] != epochs[1]:
        found.append(f"schedule.epochs was {epochs[0]}, is now {epochs[1]}, which changes every rate of a cosine")
    return found


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two recipes, one line per value; what may change when a run resumes is left out."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        one, other, place = before.get(name), now.get(name), prefix + name
        added = name in ADDED and name not in before
        if one == other or place in MAY_CHANGE or added:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{place}.")
        else:
            found.append(f"{place} was {one!r}, is now {other!r}")
    return found


def _read(folder: RunFolder, name: str) -> dict[str, Any] | None:
    try:
        return folder.read(name)
    except FileFormatError as error:
        raise OptionError(f"{braced(error)}; {ANOTHER}", out=None) from error


def _as_stored(recipe: Recipe) -> dict[str, Any]:
    """As it reads from a file: with lists for tuples."""
    stored: dict[str, Any] = json.loads(json.dumps(recipe.to_dict()))
    return stored
