"""Checkpoints of a run: nested dicts of tensors and JSON values in one safetensors file. Nothing is a pickle."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bnn._common.atomic import write_atomically
from bnn.files import FileFormatError

FORMAT = "bayesianize-checkpoint"
FORMAT_VERSION = 1


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
        raise FileFormatError(f"{path} was written by a newer version (format {version!r}): upgrade to go on from it")
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
        return f"{path} is {what}; the checkpoint before it, {older}, is kept: delete {path} to go on from that one"
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
