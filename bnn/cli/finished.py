"""The finished run that a folder holds; whatever else it may be, the mistake says what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bnn._common.errors import NetworkNeeded
from bnn._common.text import nearest
from bnn.cli.mistakes import Mistake
from bnn.train.outcome import RUN, Outcome, load_run

RECIPE = "recipe.json"
WANTED = "expected the folder of a finished run, as `bayesianize train --out FOLDER` wrote it"


def finished(folder: str | os.PathLike[str]) -> Outcome:
    """The run in `folder`, ready to predict."""
    folder = os.fspath(folder)
    if os.path.isfile(folder):
        raise Mistake(f"{folder} is a file; {WANTED}{_around(folder)}")
    if not os.path.isdir(folder):
        raise Mistake(f"there is no folder {folder}{_sibling(folder)}; {WANTED}")
    if not os.path.exists(os.path.join(folder, RUN)):
        raise Mistake(_unfinished(folder))
    try:
        return load_run(folder)
    except NetworkNeeded as error:
        raise Mistake(
            f"{folder} is a run of bnn.fit, which does not know how to build its network: use Python, "
            "bnn.train.load_run(folder, net=...) and bnn.predict"
        ) from error


def _unfinished(folder: str) -> str:
    if os.path.exists(os.path.join(folder, RECIPE)):
        return (
            f"the run in {folder} is not finished: there is a {RECIPE}, but no {RUN}; start `bayesianize train` with "
            "the same arguments again, and it goes on where it stopped"
        )
    inside = [os.path.join(folder, name) for name in _runs(folder)]
    hint = f"; there are runs in it: {', '.join(inside[:5])}" if inside else ""
    return f"{folder} holds no run: there is no {RUN}; {WANTED}{hint}"


def _sibling(folder: str) -> str:
    """A suggestion: the run whose folder beside it has the nearest name."""
    parent, name = os.path.split(os.path.normpath(folder))
    return nearest(name, _runs(parent or os.curdir), before=os.path.join(parent, "") if parent else "")


def _around(path: str) -> str:
    """A suggestion: the folder that a file of a run lies in."""
    parent = os.path.dirname(path) or os.curdir
    return f": {parent}?" if os.path.exists(os.path.join(parent, RUN)) else ""


def _runs(folder: str) -> Iterator[str]:
    """The names of the finished runs in `folder`, sorted."""
    if os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            if os.path.exists(os.path.join(folder, name, RUN)):
                yield name
