"""The format of our files: safetensors, with the conversion as JSON among the metadata, and a checksum."""

from __future__ import annotations

import importlib.metadata
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnn._common.records import stored_number
from bnn._common.text import listed
from bnn._conversion.file_header import in_order
from bnn._conversion.record import Conversion
from bnn._conversion.sparse_tensors import masks_in, packed, unpacked
from bnn._engine.temperature import temperature_of
from bnn.nn.base import BayesianLayer
from bnn.nn.pruning import masked

FORMAT = "bayesianize"
FORMAT_VERSION = 2  # of files with pruned tensors; others are still written as version 1, for older readers

Path = str | os.PathLike[str]


class FileFormatError(ValueError):
    """A file that cannot be read: foreign, damaged, or of a newer version.

    Args:
        message: what is wrong, with the name of the file.
        path: the file; None where it is not known.
    """

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = None if path is None else os.fspath(path)


# ---- writing ---------------------------------------------------------------------------------------------------------


def to_bytes(network: nn.Module, path: str) -> bytes:
    """The file of a network: the tensors of its state dict, and how it was converted. Errors name `path`."""
    tensors, aliases = _separate(_tied_state(network))
    tensors, pruned = packed(tensors, masks_in(network))
    temperature = temperature_of(network)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION if pruned else 1),
        "bnn_version": _version(),
        "conversion": Conversion.of(network).to_json(),
        "aliases": json.dumps(aliases),
        **({} if temperature == 1 else {"temperature": json.dumps(temperature)}),
        **({"pruned": json.dumps(pruned)} if pruned else {}),
    }
    metadata["checksum"] = checksum(metadata, tensors)
    try:
        return in_order(safetensors.torch.save(tensors, metadata))
    except KeyError as error:
        raise ValueError(f"cannot write {path}: safetensors has no type {error.args[0]}") from None


def _tied_state(network: nn.Module) -> dict[str, Any]:
    """The state dict, in which what it holds of a tied layer in other units, or masked, is one tensor for all names."""
    state: dict[str, Any] = dict(network.state_dict())
    first: dict[int, str] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        known = first.setdefault(id(module), prefix)
        names = [*module.units(), *masked(module)] if isinstance(module, BayesianLayer) and known != prefix else ()
        state.update({prefix + part: state[known + part] for part in names if known + part in state})
    return state


def _separate(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors as safetensors wants them (contiguous, none sharing memory), and {alias: name of the same tensor}."""
    refuse_uninitialised(state)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[Any, str] = {}
    storages = set()
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_meta:
            kind = "on the meta device" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ValueError(f"cannot save {name!r}: only tensors with data are stored, and it is {kind}")
        view = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and view in names:
            aliases[name] = names[view]
            continue
        names[view] = name
        storage = value.untyped_storage().data_ptr()
        packed = value.detach().cpu().contiguous()
        tensors[name] = packed.clone() if storage in storages else packed
        storages.add(storage)
    return tensors, aliases


def refuse_uninitialised(state: Mapping[str, Any]) -> None:
    lazy = [name for name, value in state.items() if is_lazy(value)]
    if lazy:
        raise ValueError(f"{listed(lazy)} not initialised yet: run a forward pass first")


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(path: str) -> tuple[dict[str, Tensor], Conversion, float]:
    """The whole state dict, aliases included, the conversion, and the temperature."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot load {path}: it is a folder; expected a file that bnn.save wrote")
    if not os.path.exists(path):
        raise FileNotFoundError(f"cannot load {path}: there is no such file")
    if not os.path.isfile(path):  # a pipe would wait for a writer
        raise FileFormatError(f"cannot load {path}: expected a regular file that bnn.save wrote", path)
    metadata, tensors = _opened(path)
    try:
        conversion = Conversion.from_json(metadata["conversion"])
        aliases = _aliases(metadata["aliases"], tensors)
        temperature = stored_number(json.loads(metadata.get("temperature", "1.0")), "the temperature", positive=True)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"cannot load {path}: its record of the conversion cannot be read: {error}; a family of your own must be "
            "defined (imported) before loading",
            path,
        ) from error
    if "checksum" in metadata and metadata["checksum"] != checksum(metadata, tensors):  # older files have none
        raise FileFormatError(f"{path} is damaged: its checksum does not fit; load another copy of it", path)
    try:
        tensors = unpacked(tensors, json.loads(metadata.get("pruned", "{}")))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} does not hold what its record of pruning says: {error}", path) from error
    return tensors | {alias: tensors[name] for alias, name in aliases.items()}, conversion, temperature


def _opened(path: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors as they are stored; FileFormatError unless they are ours."""
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata, file.keys())
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except (OSError, FileFormatError):
        raise
    except Exception as error:  # safetensors has its own, and TypeError and others for types that torch does not know
        raise FileFormatError(f"cannot load {path}: {_foreign(path)} ({error})", path) from error


def _check_format(path: str, metadata: Mapping[str, str], names: Iterable[str]) -> None:
    """Raises FileFormatError unless the metadata are ours, complete, and not newer than this version."""
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} is a safetensors file without a record of the conversion; it seems to hold plain weights "
            f"({listed(names)}): use network.load_state_dict(safetensors.torch.load_file(path))",
            path,
        )
    version = metadata.get("format_version", "")
    if not version.isdecimal() or len(version) > 9:  # int() refuses thousands of digits
        raise FileFormatError(f"{path} has no valid format version, found {version[:20]!r}", path)
    if int(version) > FORMAT_VERSION:
        writer = metadata.get("bnn_version", "unknown")
        raise FileFormatError(
            f"{path} was written by a newer version of bayesianize ({writer}, format {version}; this one reads up to "
            f"{FORMAT_VERSION}): upgrade to load it",
            path,
        )
    missing = [name for name in ("conversion", "aliases") if name not in metadata]
    if missing:
        said = f"cannot load {path}: its record of the conversion cannot be read"
        raise FileFormatError(f"{said}: {listed(missing)} missing from the metadata", path)


def _aliases(text: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """{alias: name of the same tensor}; ValueError unless every alias is new and every name is there."""
    aliases = json.loads(text)
    if not isinstance(aliases, dict):
        raise ValueError(f"expected aliases as a dict, found a {type(aliases).__name__}")
    for alias, name in aliases.items():
        if alias in tensors or not isinstance(name, str) or name not in tensors:
            raise ValueError(f"the alias {alias!r:.60} of {name!r:.60} does not fit the tensors of the file")
    return aliases


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of all that `load_` reads: other metadata may be added to a file. At 5 GB/s it costs a tenth of a save."""
    described = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    known = [metadata[name] for name in ("temperature", "pruned") if name in metadata]  # older files have none
    total = zlib.crc32(json.dumps([metadata["conversion"], metadata["aliases"], described, *known]).encode())
    for name in sorted(tensors):
        if tensors[name].numel():
            total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return f"crc32:{total:08x}"


def _foreign(path: str) -> str:
    """What a file that is not safetensors seems to be."""
    with open(path, "rb") as file:
        start = file.read(2)
    if start == b"PK" or start[:1] == b"\x80":
        return "it looks like a file of torch.save; read it with torch.load(path, weights_only=True)"
    return "it is not a safetensors file, or was cut short"


def _version() -> str:
    try:
        return importlib.metadata.version("bayesianize")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
