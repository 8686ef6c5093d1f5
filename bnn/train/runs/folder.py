"""The folder of a run: its files, read and written by one process at a time, and whether a recipe may start in it."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Literal

from bnn._common.atomic import held, write_atomically
from bnn._common.errors import OptionError, braced
from bnn._common.text import listed
from bnn.files import FileFormatError
from bnn.likelihoods.registry import AUTO
from bnn.train.recipe import Recipe
from bnn.train.schedule import ADDED

State = Literal["fresh", "begun", "finished"]

# Of the run as a whole.
RECIPE, RUN, NET = "recipe.json", "run.json", "net.safetensors"
VALIDATION, EVALUATION, GUARANTEE = "validation.json", "evaluation.json", "guarantee.json"
PROMISE = "promise.json"
# Of every stage, which is a folder in that of the run; a run of `bnn.fit` is one stage, in the folder itself.
CHECKPOINT, BEST, METRICS = "checkpoint.safetensors", "best.safetensors", "metrics.jsonl"
TENSORBOARD, LOCK = "tensorboard", ".lock"
CHECKPOINTS = "checkpoint.*safetensors"  # the one before the last is kept, too
PRETRAIN, TRAIN, KL, MEMBER = "pretrain", "train", "kl_", "member"  # stages: kl_0.1, member0, ...
RETRY, PRUNE = "retry", "prune"  # later ones

ANOTHER_FOLDER = "give this run another folder (out=), or delete the old one to start again"
LATER = (
    "method",
    "schedule",
    "kl_weights",
    "global_inducing",
    "teacher",
    "prune",
    "spread",
    "activations",
    "retry",
)  # what pretraining does not depend on
OLDER = {"activations": False, "retry": False, "guarantee_by_class": False}  # what recipes meant without these fields
MAY_CHANGE = ("name", "about", "ours", "laplace", "calibrate", "schedule.epochs", "schedule.patience")
ANOTHER = "choose another folder with {out}, or delete this one to start again"


class RunFolder(os.PathLike[str]):
    """A folder that holds a run, or will.

    | file | written by | holds |
    |---|---|---|
    | recipe.json | the start | what is carried out; not of `bnn.fit` |
    | run.json, net.safetensors | the end | what is needed to use the network, and the network |
    | guarantee.json | the end | scores of the inputs set aside for a guarantee, where there are any |
    | validation.json | `bayesianize train` | predictions on the validation data |
    | promise.json | `bayesianize train` | whether intervals or probabilities keep their promise |
    | evaluation.json | `bayesianize evaluate` | what `bnn.evaluate` found |
    | STAGE/checkpoint.safetensors, best.safetensors | training | where it resumes, and its best parameters |
    | STAGE/metrics.jsonl, tensorboard/ | training | the numbers of every epoch |
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"RunFolder({self.path!r})"

    def file(self, name: str) -> str:
        """The path of the file of this name, one of those above."""
        return os.path.join(self.path, name)

    def has(self, name: str) -> bool:
        """Whether the file of this name is there."""
        return os.path.exists(self.file(name))

    def stage(self, name: str) -> RunFolder:
        """The folder of a stage; of a run of `bnn.fit`, whose stage has no name, the folder itself."""
        return RunFolder(self.file(name)) if name else self

    @property
    def state(self) -> State:
        """How far the run is: "fresh" (nothing is there), "begun" or "finished"."""
        if self.has(RUN):
            return "finished"
        return "begun" if self.has(RECIPE) or self.has_checkpoint else "fresh"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint in the folder itself, as `bnn.fit` writes it."""
        return any(pathlib.Path(self.path).glob(CHECKPOINTS))

    def saved(self, *stages: str) -> bool:
        """Whether one of these stages (the beginnings of their names) has come as far as a checkpoint."""
        found = pathlib.Path(self.path).rglob(CHECKPOINTS)
        return any(place.relative_to(self.path).as_posix().startswith(stages) for place in found)

    # -- records -------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file; None if there is no such file; FileFormatError if it is damaged."""
        path = self.file(name)
        if not os.path.exists(path):
            return None
        try:
            with open(path, encoding="utf-8") as file:
                return _object(json.load(file))
        except (ValueError, OSError) as error:
            raise FileFormatError(f"{path} cannot be read: it is damaged ({error})") from error

    def write(self, name: str, record: dict[str, Any], indent: int | None = 1) -> None:
        """Writes a JSON file, whole or not at all."""
        write_atomically(json.dumps(record, indent=indent).encode(), self.file(name))

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.file(name))

    def epochs(self) -> list[dict[str, Any]]:
        """The numbers of every epoch of this stage; half a line of a run that is being written is left out."""
        if not self.has(METRICS):
            return []
        with open(self.file(METRICS), encoding="utf-8") as file:
            text = file.read()
        lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        try:
            return [_object(json.loads(line)) for line in lines if line.strip()]
        except ValueError as error:
            raise FileFormatError(f"cannot read {self.file(METRICS)}: {error}") from error

    def training(self) -> dict[str, list[dict[str, Any]]]:
        """The epochs of every stage by its name, plain pretraining first; of `bnn.fit` it is called "train"."""
        root = pathlib.Path(self.path)
        found = [file.parent.relative_to(root).as_posix() for file in root.rglob(METRICS)]
        order = sorted(found, key=lambda stage: (not is_pretraining(stage), stage))
        stages = {TRAIN if stage == "." else stage: self.stage(stage).epochs() for stage in order}
        return {stage: epochs for stage, epochs in stages.items() if epochs}

    # -- writing, one process at a time --------------------------------------------------------------------------------

    def create(self, resume: bool = True) -> None:
        """Makes the folder, if need be; an error where it cannot be the folder of a run."""
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise NotADirectoryError(f"out={self.path!r} is a file; expected a folder for the run")
        if not resume and os.path.isdir(self.path) and self.has_checkpoint:
            raise FileExistsError(f"{self} holds a run already: choose another folder, or resume it (resume=True)")
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot make the folder out={self.path!r}: {error.strerror}; choose another"
            ) from error

    def clear_leftovers(self) -> None:
        """Removes what a killed run left half-written."""
        for leftover in glob.glob(os.path.join(glob.escape(self.path), ".*.tmp")):
            with contextlib.suppress(OSError):
                os.remove(leftover)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Says what to do when the disk is full."""
        try:
            yield
        except BlockingIOError:
            raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise OSError(
                error.errno,
                f"cannot write to {self}: {error.strerror or error}; the last checkpoint there is intact: "
                f"{'make room' if full else 'make it writable'} and start the run again to resume it",
            ) from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Refuses a folder in which another run trains; the system frees it when a run ends, however it ends."""
        with contextlib.ExitStack() as stack:
            try:
                with self.writing():
                    stack.enter_context(held(self.file(LOCK)))
            except BlockingIOError:
                raise RuntimeError(f"another run is training in {self}: wait for it, or use another folder") from None
            yield


def is_pretraining(stage: str) -> bool:
    """Whether a stage comes before the main training."""
    return stage.split("/")[0] == PRETRAIN


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got a {type(value).__name__}")
    return value


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
    stored["recipe"] = OLDER | stored["recipe"]
    now = _as_stored(recipe)
    if recipe.kl_weights:  # the one that was chosen is in its place
        now["schedule"]["kl_weight"] = stored["recipe"]["schedule"]["kl_weight"]
    if stored.get("likelihoods"):
        stored["recipe"]["likelihood"] = AUTO if now["likelihood"] == AUTO else stored["recipe"]["likelihood"]
    return bool(stored["recipe"] == now)


def differing(folder: RunFolder, recipe: Recipe) -> list[str]:
    """What forbids `recipe` to resume in `folder`, one line per value."""
    before = _read(folder, RECIPE)
    if before is None or not folder.saved(""):  # it ended before its first checkpoint: nothing is lost
        return []
    before, now = OLDER | before, _as_stored(recipe)
    found = differences(before, now)
    if not folder.saved(TRAIN, KL):  # pretraining alone: what comes after it may still change
        return [one for one in found if not one.startswith(LATER)]
    if not folder.saved(PRUNE):  # it comes after all that was trained
        found = [one for one in found if not one.startswith("prune")]
    else:
        found += _of_another_network(before, now)
    epochs = [one.get("schedule", {}).get("epochs") for one in (before, now)]
    if recipe.schedule.cosine and epochs[0] != epochs[1]:
        found.append(f"schedule.epochs was {epochs[0]}, is now {epochs[1]}, which changes every rate of a cosine")
    return found


def _of_another_network(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What may change while a network trains, but not once it was pruned and trained on."""
    pairs = {name: [one.get("schedule", {}).get(name) for one in (before, now)] for name in ("epochs", "patience")}
    return [
        f"schedule.{name} was {one!r}, is now {other!r}, but what was trained has been pruned since"
        for name, (one, other) in pairs.items()
        if one != other
    ]


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
