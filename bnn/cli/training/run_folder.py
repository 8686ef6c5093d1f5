"""The folder that a run goes to: free, of the same run, or a mistake that says what differs."""

from __future__ import annotations

import json
import os
from typing import Any

from bnn._common.text import listed
from bnn.cli.mistakes import Mistake
from bnn.train.execute import begun, differences
from bnn.train.outcome import RUN
from bnn.train.recipe import Recipe

RECIPE = "recipe.json"
ANEW = "choose another folder with --out, or delete this one to start anew"


def check_folder(folder: str, recipe: Recipe) -> None:
    """A mistake unless a run of `recipe` may start, or go on, in `folder`."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise Mistake(f"--out {folder} is a file; expected a folder, which need not exist")
    before = _read(os.path.join(folder, RECIPE))
    if before is None:
        if os.path.exists(os.path.join(folder, RUN)):
            raise Mistake(f"{folder} holds a run of bnn.fit; {ANEW}")
        return
    if not begun(folder):
        return  # pretraining alone may go on with other values; `run_recipe` knows which
    now = json.loads(json.dumps(recipe.to_dict()))
    different = differences(before, now)
    epochs = [one.get("schedule", {}).get("epochs") for one in (before, now)]
    if recipe.schedule.cosine and epochs[0] != epochs[1]:
        different.append(f"schedule.epochs was {epochs[0]}, is now {epochs[1]}, which changes every rate of a cosine")
    if different:
        raise Mistake(f"{folder} holds another run: {listed(different)}; {ANEW}")


def is_finished(folder: str, recipe: Recipe) -> bool:
    """Whether `folder` holds this very run, finished."""
    stored = _read(os.path.join(folder, RUN))
    if stored is None or not isinstance(stored.get("recipe"), dict):
        return False
    now = json.loads(json.dumps(recipe.to_dict()))
    if recipe.kl_weights:  # the one that was chosen is in its place
        now["schedule"]["kl_weight"] = stored["recipe"]["schedule"]["kl_weight"]
    return bool(stored["recipe"] == now)


def _read(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is none."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
    except ValueError as error:
        raise Mistake(f"{path} is damaged ({error}); {ANEW}") from error
    if not isinstance(stored, dict):
        raise Mistake(f"{path} is damaged: expected an object; {ANEW}")
    return stored
