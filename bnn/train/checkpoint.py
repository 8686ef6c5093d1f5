"""Checkpoints: nested dicts of tensors and JSON values in one safetensors file, and the run they belong to.

Nothing is a pickle. A checkpoint of another run is refused, with what differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from contextlib import AbstractContextManager
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bnn._common.atomic import write_atomically
from bnn._common.text import listed
from bnn._conversion.record import Conversion
from bnn.data.batches import Batches
from bnn.files import FileFormatError, state_mismatch
from bnn.likelihoods.base import about
from bnn.objective import ELBO
from bnn.train.runs.folder import ANOTHER_FOLDER, CHECKPOINT, RunFolder
from bnn.train.schedule import Schedule

FORMAT = "bayesianize-checkpoint"
FORMAT_VERSION = 1
TAILS = "elbo.likelihood._tails"  # of the noise of real targets; Gaussian in checkpoints that lack it


def write_checkpoint(state: dict[str, Any], path: str) -> None:
    """Writes `state` whole or not at all; what was there before goes to `<path>` with "previous" in its name.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the checkpoints that were there are left alone.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_packed(state, "", tensors))
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "tree": tree,
        "checksum": str(_checksum(tree, tensors)),
    }
    data = safetensors.torch.save(tensors or {"empty": torch.zeros(0, device="cpu")}, metadata)
    write_atomically(data, path, keep=previous(path))


def read_checkpoint(path: str) -> dict[str, Any]:
    """The state that `write_checkpoint` wrote.

    Raises:
        FileFormatError: cut short, damaged, or not a checkpoint of ours; says what to do.
    """
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator of its own)
    except (safetensors.SafetensorError, OSError) as error:
        raise FileFormatError(_damaged(path, f"cut short, damaged, or no checkpoint at all ({error})")) from error
    if metadata.get("format") != FORMAT:
        raise FileFormatError(_damaged(path, "a file of another kind: no checkpoint of bnn.fit"))
    version = metadata.get("format_version", "")
    if not version.isdecimal() or int(version) > FORMAT_VERSION:
        raise FileFormatError(f"{path} was written by a newer version (format {version!r}): upgrade to resume it")
    if metadata.get("checksum") != str(_checksum(metadata.get("tree", ""), tensors)):
        raise FileFormatError(_damaged(path, "damaged: its checksum does not fit"))
    try:
        state: dict[str, Any] = dict(_unpacked(json.loads(metadata["tree"]), tensors))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(_damaged(path, f"damaged: its record cannot be read ({error})")) from error
    return state


def previous(path: str) -> str:
    """Where the checkpoint before the last one is kept.

    >>> previous("run/checkpoint.safetensors")
    'run/checkpoint.previous.safetensors'
    """
    stem, ending = os.path.splitext(path)
    return f"{stem}.previous{ending}"


def _damaged(path: str, what: str) -> str:
    older = previous(path)
    if os.path.exists(older):
        return f"{path} is {what}; the checkpoint before it, {older}, is kept: delete {path} to resume from that one"
    return f"{path} is {what}; delete it to start again"


def _packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON, with every tensor put into `tensors` and named in its place; lossless for what we store."""
    if isinstance(value, Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"  # keys 1 and "1" look the same in a path
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"$tensor": name}
    if isinstance(value, dict):
        return {"$dict": [[key, _packed(one, f"{path}/{key}", tensors)] for key, one in value.items()]}
    if isinstance(value, tuple | list):
        kind = "$tuple" if isinstance(value, tuple) else "$list"
        return {kind: [_packed(one, f"{path}/{i}", tensors) for i, one in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot store {path[1:]!r}: expected tensors, numbers, text, lists and dicts; got {value!r}")


def _unpacked(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "$tensor":
        return tensors[content]
    if kind == "$dict":
        return {key: _unpacked(one, tensors) for key, one in content}
    parts = [_unpacked(one, tensors) for one in content]
    return tuple(parts) if kind == "$tuple" else parts


def _checksum(tree: str, tensors: dict[str, Tensor]) -> int:
    """CRC-32 of the record and of all tensors' bytes, in the order of their names."""
    total = zlib.crc32(tree.encode())
    for name in sorted(tensors):
        if name != "empty" and tensors[name].numel():
            total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return total


class Checkpoints:
    """The checkpoints of one stage: written by the first process, read by all; without a folder nothing is written."""

    def __init__(self, fabric: Any, folder: RunFolder | None) -> None:
        self.fabric, self.folder = fabric, folder

    def path(self, name: str) -> str:
        """The file of this name."""
        assert self.folder is not None
        return self.folder.file(name)

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Writes a checkpoint whole or not at all."""
        if self.folder is not None:
            with self.writing():
                self.fabric.save(self.path(name), state)

    def load(self, path: str) -> dict[str, Any]:
        """What a checkpoint holds."""
        state: dict[str, Any] = self.fabric.load(path)
        return state

    def newest(self) -> str | None:
        """The newest checkpoint; what a killed run left half-written is removed."""
        if self.folder is None:
            return None
        if self.fabric.is_global_zero:
            self.folder.clear_leftovers()
        path = self.path(CHECKPOINT)
        return next((one for one in (path, previous(path)) if os.path.exists(one)), None)

    def intact(self) -> str:
        """A clause for errors: what is still there."""
        return f"; the last checkpoint in {self.folder} is intact" if self.newest() else ""

    def writing(self) -> AbstractContextManager[None]:
        """Says what to do when the disk is full."""
        return contextlib.nullcontext() if self.folder is None else self.folder.writing()

    def alone(self) -> AbstractContextManager[None]:
        """Refuses a folder in which another run trains."""
        if self.folder is None or not self.fabric.is_global_zero:
            return contextlib.nullcontext()
        return self.folder.alone()


def identity(elbo: ELBO, source: Batches, schedule: Schedule, processes: int, sampling: str | None) -> dict[str, Any]:
    """Everything that decides the course of a run, as JSON; its seed aside, which the checkpoint decides.

    Args:
        sampling: what draws guarantee in a step. Where the schedule leaves it open, the checkpoint decides that, too.
    """
    return {
        "schedule": schedule.to_dict(),
        "data": source.fingerprint(),
        "likelihood": getattr(elbo.likelihood, "__name__", type(elbo.likelihood).__name__),
        "class weights": _class_weights(elbo.likelihood),
        "conversion": Conversion.of(elbo.net).to_json(),
        "trained": [name for name, parameter in elbo.named_parameters() if parameter.requires_grad],
        "processes": processes,
        "sampling": sampling,
        "teacher": None if elbo.teacher is None else elbo.teacher.fingerprint(elbo.likelihood),
    }


def _class_weights(likelihood: Any) -> list[float] | None:
    found: list[float] | None = about(likelihood).options().get("class_weights")
    return found


def optimiser_state(stored: dict[str, Any], optimiser: Any) -> dict[str, Any]:
    """The state of the optimiser as stored; of a version whose noise trained at the rate of ordinary parameters, moved.

    There the noise was the last parameter of the first group; now it is the last of the scales, which are the second.
    """
    then, now = ([len(group["params"]) for group in one["param_groups"]] for one in (stored, optimiser.state_dict()))
    if then == now or then[0] != now[0] + 1:
        return stored
    first, *rest = ({**group, "params": list(group["params"])} for group in stored["param_groups"])
    if len(now) > len(then):  # there were no scales
        own = optimiser.state_dict()["param_groups"][1]
        rest.insert(0, {**own, "params": []})
    rest[0]["params"].append(first["params"].pop())
    return {**stored, "param_groups": [first, *rest]}


def check_same(path: str, state: dict[str, Any], elbo: ELBO, own: dict[str, Any], schedule: Schedule) -> None:
    """Raises ValueError unless the checkpoint is of the run that `own` identifies; FileFormatError if of no run."""
    if not {"run", "objective", "optimiser"} <= state.keys():
        raise FileFormatError(f"{path} is no checkpoint of a run, it holds {sorted(state)}; {ANOTHER_FOLDER}")
    record = state["run"]
    network = _network_differs(state["objective"], record, elbo, own)
    if network:
        raise ValueError(f"{path} is a checkpoint of another network: {listed(network)}; {ANOTHER_FOLDER}")
    run = _run_differs(record, own, schedule)
    if run:
        raise ValueError(f"{path} is a checkpoint of another run: {listed(run)}; {ANOTHER_FOLDER}")


def _network_differs(tensors: dict[str, Tensor], record: dict[str, Any], elbo: ELBO, own: dict[str, Any]) -> list[str]:
    expected = {f"elbo.{name}": value for name, value in elbo.state_dict().items()}
    if TAILS not in tensors:
        expected.pop(TAILS, None)
    mismatch = state_mismatch(expected, tensors)
    then, now = (Conversion.from_json(one["conversion"]) for one in (record, own))
    if not mismatch and then != now:
        mismatch = ["its layers were converted with other options"]
    if not mismatch and record["trained"] != own["trained"]:
        mismatch = ["other parameters are frozen"]
    return mismatch


def _run_differs(record: dict[str, Any], own: dict[str, Any], schedule: Schedule) -> list[str]:
    different = schedule.differences(record["schedule"])
    if record["epoch"] + bool(record["step"]) > schedule.epochs:
        different.append(f"epochs: {record['epoch']} behind it already, {schedule.epochs} now")
    if schedule.cosine and record["schedule"]["epochs"] != schedule.epochs:
        different.append("epochs: with cosine they set the rate of every epoch")
    different += [
        f"{name}: {record.get(name)} then, {own[name]} now"
        for name in ("likelihood", "class weights", "data", "teacher")
        if record.get(name) != own[name]
    ]
    if record["processes"] != own["processes"] and record["step"]:
        different.append(
            f"processes: {record['processes']} then, {own['processes']} now; amid an epoch only as many can resume"
        )
    return different
