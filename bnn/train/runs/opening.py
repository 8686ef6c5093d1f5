"""Opening a run: from its folder to a `Run`; whatever else the folder may be, the error says what to do."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from bnn import likelihoods
from bnn._common.text import nearest
from bnn.data.dataset import TargetScale
from bnn.data.sources import preparation
from bnn.ensemble import Ensemble
from bnn.files import FileFormatError, load_
from bnn.train.build import build_net
from bnn.train.history import History
from bnn.train.laplace import from_record
from bnn.train.recipe import Recipe
from bnn.train.retry import Retry
from bnn.train.runs.folder import GUARANTEE, KL, MEMBER, NET, PRUNE, RECIPE, RETRY, RUN, TRAIN, RunFolder
from bnn.train.runs.guaranteeing import RunGuarantee
from bnn.train.runs.run import Run
from bnn.train.settling import Comparison

WANTED = "expected the folder of a finished run, as `bayesianize train --out FOLDER` wrote it"


def open_run(folder: str | os.PathLike[str], net: nn.Module | None = None) -> Run:
    """A finished run, read back from its folder; needs neither its data nor anything else.

    Args:
        folder: of `bayesianize train`, `bnn.train.run_recipe`, or `bnn.fit` with a `bnn.data.Data`.
        net: a plain network of the same architecture, for runs of `bnn.fit`: only recipes say how to build theirs.

    Raises:
        FileNotFoundError: there is no such folder, it holds no run, or the run is not finished.
        NotADirectoryError: it is a file.
        FileFormatError: a file in it is damaged.
        ValueError: a run of `bnn.fit` needs `net`.
    """
    place = RunFolder(folder)
    _check_finished(place)
    stored = place.read(RUN)
    assert stored is not None
    try:
        found, recipe = _decoded(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{place.file(RUN)} cannot be read: {error}") from error
    if net is None:
        if recipe is None:
            raise ValueError(
                f"{place} is a run of bnn.fit, which does not know how to build its network: pass net=, a plain one, "
                f"in Python: bnn.open_run({place.path!r}, net=...)"
            )
        net = build_net(recipe.net, found["in_shape"], found["out_features"])
        net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    load_(net, place.file(NET))
    run = Run(net, recipe=recipe, folder=place, guarantee=_guarantee(place), **found)
    main = place.stage(main_stage(run))
    best, stopped = stored.get("best"), stored.get("stopped") or "finished"  # older versions do not say
    laplace = from_record(stored.get("laplace"), run.likelihood)
    tuned = _tuned(place.stage(PRUNE), stored.get("tuned"), run.likelihood)
    run.history = History(main.epochs(), run.likelihood, best, stopped, main.path, laplace, tuned, stored.get("noise"))
    return run


def _tuned(folder: RunFolder, stored: dict[str, Any] | None, likelihood: Any) -> History | None:
    """The course of training after pruning, where there was some."""
    if stored is None:
        return None
    return History(folder.epochs(), likelihood, stored["best"], stored["stopped"], folder.path)


def _guarantee(folder: RunFolder) -> RunGuarantee | None:
    stored = folder.read(GUARANTEE)
    if stored is None:
        return None
    try:
        return RunGuarantee.from_dict(stored)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{folder.file(GUARANTEE)} cannot be read: {error}") from error


load_run = open_run  # its name before there was `bnn.open_run`


def main_stage(run: Run) -> str:
    """The stage of the main training: of members that were trained alone the last."""
    if run.recipe is None:
        return ""
    if run.candidates and (run.retry is None or not run.retry.kept):
        return f"{KL}{run.recipe.schedule.kl_weight!r}"
    if run.recipe.bayesian:
        return RETRY if run.retry is not None and run.retry.kept else TRAIN
    chosen = [] if run.likelihoods is None else [str(run.recipe.likelihood)]
    alone = [f"{MEMBER}{run.recipe.members - 1}"] if run.recipe.members > 1 and not run.recipe.together else []
    return os.path.join(TRAIN, *chosen, *alone)


def _check_finished(folder: RunFolder) -> None:
    """An error unless the folder holds a finished run; whatever else it may be, it says what to do."""
    if os.path.isfile(folder):
        parent = RunFolder(os.path.dirname(folder.path) or os.curdir)
        hint = f": {parent}?" if parent.state == "finished" else ""
        raise NotADirectoryError(f"{folder} is a file; {WANTED}{hint}")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder}{_sibling(folder.path)}; {WANTED}")
    if folder.state == "finished":
        return
    if folder.has(RECIPE):
        raise FileNotFoundError(
            f"the run in {folder} is not finished: there is a {RECIPE}, but no {RUN}; to resume it, start `bayesianize "
            "train` (or run_recipe) with the same arguments again"
        )
    inside = [folder.file(name) for name in _runs_in(folder.path)]
    hint = f"; there are runs in it: {', '.join(inside[:5])}" if inside else ""
    if folder.has_checkpoint:
        hint += "; there is a checkpoint: bnn.fit writes that file when it ends, if its data are a bnn.data.Data"
    raise FileNotFoundError(f"{folder} holds no finished run: there is no {RUN}; {WANTED}{hint}")


def _sibling(folder: str) -> str:
    """A suggestion: the run whose folder beside it has the nearest name."""
    parent, name = os.path.split(os.path.normpath(folder))
    return nearest(name, _runs_in(parent or os.curdir), before=os.path.join(parent, "") if parent else "")


def _runs_in(folder: str) -> list[str]:
    """The names of the finished runs in `folder`, sorted."""
    if not os.path.isdir(folder):
        return []
    return sorted(name for name in os.listdir(folder) if RunFolder(os.path.join(folder, name)).has(RUN))


def _decoded(stored: dict[str, Any]) -> tuple[dict[str, Any], Recipe | None]:
    """The fields of a run, and its recipe, as `Run.to_dict` stored them."""
    target = stored["target"]
    return {
        "likelihood": likelihoods.from_record(stored["likelihood"]),
        "task": stored["task"],
        "in_shape": tuple(stored["in_shape"]),
        "out_features": stored["out_features"],
        "classes": tuple(stored["classes"]),
        "target": None if target is None else TargetScale.from_dict(target),
        "targets": tuple(stored.get("targets", ())),  # of old runs
        "rows": stored.get("rows"),
        "preparation": None if stored["preparation"] is None else preparation(stored["preparation"]),
        "candidates": stored["candidates"],
        "likelihoods": stored.get("likelihoods"),  # older versions have none
        "plain": None if stored.get("plain") is None else Comparison(**stored["plain"]),
        "retry": None if stored.get("retry") is None else Retry(**stored["retry"]),
    }, None if stored["recipe"] is None else Recipe.from_dict({"calibrate": False} | stored["recipe"])  # of old runs
