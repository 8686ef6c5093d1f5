"""Networks as files: safetensors plus JSON metadata that records the conversion. Nothing here is a pickle."""

from __future__ import annotations

import importlib.metadata
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnn._common.atomic import check_target, write_atomically
from bnn._common.text import listed
from bnn._conversion.record import Conversion, kind_of, skeleton
from bnn._conversion.undo import unchanged_on_error
from bnn._engine.inputs import check_network
from bnn.bayesianize import convert_chosen_
from bnn.functional.linalg import inverse_softplus, positive
from bnn.global_inducing import register_global_inducing_weights_
from bnn.nn.base import LEGACY_BUFFERS, BayesianLayer
from bnn.nn.families.inducing import InducingBase, InducingOptions
from bnn.nn.global_inducing import NAME

FORMAT = "bayesianize"
FORMAT_VERSION = 1
LEGACY_JITTER = 1e-4  # what the 2020 code added to Psi, in units of its mean diagonal

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


def save(network: nn.Module, path: Path) -> None:
    """Writes a network to one file: the tensors of its state dict, and how it was converted.

    The file appears whole or not at all; it replaces an older one and keeps its permissions. Shared tensors (tied
    layers) are stored once. A checksum of everything that `bnn.load_` reads goes with it.

    Args:
        network: a Bayesian network, or a plain one.
        path: the file, in a folder that exists; `.safetensors` is the usual ending.

    Raises:
        ValueError: the state dict holds something that is not a tensor with data.
        FileNotFoundError: there is no such folder.
        FileExistsError, IsADirectoryError: the path names a pipe, a device or a folder.

    >>> import tempfile, bnn
    >>> net, fresh = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bnn.save(net, f"{folder}/net.safetensors")
    ...     bnn.load_(fresh, f"{folder}/net.safetensors")
    >>> fresh
    InducingLinear(in_features=3, out_features=2, bias=True, family=inducing, M=1x2, q=diagonal, prior_sd=1)
    """
    check_network(network)
    path = os.path.realpath(path)  # a link stays a link: what it names is replaced
    check_target(path)
    tensors, aliases = _packed(network.state_dict())
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "bnn_version": _version(),
        "conversion": Conversion.of(network).to_json(),
        "aliases": json.dumps(aliases),
    }
    metadata["checksum"] = _checksum_of_file(metadata, tensors)
    try:
        data = safetensors.torch.save(tensors, metadata)
    except KeyError as error:
        raise ValueError(f"cannot write {path}: safetensors has no type {error.args[0]}") from None
    write_atomically(data, path)


def load_(network: nn.Module, path: Path) -> None:
    """Converts a plain network, in place, as the file of `bnn.save` records, then loads its tensors.

    An error, whatever it is, leaves `network` as it was. Tensors are cast to the network's dtype and device, but not to
    another kind (integers do not become weights); NaN and inf are loaded as they were saved. A frozen weight freezes
    its posterior.

    Args:
        network: a plain network of the architecture that was saved.
        path: a file that `bnn.save` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is damaged, not ours, or written by a newer version.
        ValueError: the network does not fit, or is Bayesian already.
    """
    check_network(network)
    path = os.fspath(path)
    tensors, conversion = _read(path)
    _check_replay(network, tensors, conversion, path)
    with unchanged_on_error(network, network.state_dict().keys() & tensors.keys()):
        with _naming(path):
            _replay_(conversion, network)
        network.load_state_dict(tensors)


def _check_replay(network: nn.Module, tensors: Mapping[str, Tensor], conversion: Conversion, path: str) -> None:
    """Raises unless the conversion and the tensors of a file fit `network`; tries them on a twin without memory."""
    with _naming(path):
        conversion.check_fits(network)
        _refuse_uninitialised(network.state_dict())
        twin = skeleton(network)
        with warnings.catch_warnings(record=True) as caught:  # a layer left deterministic is a warning, after the fact
            warnings.simplefilter("always")
            try:
                _replay_(conversion, twin)
            except (TypeError, RuntimeError, ArithmeticError) as error:  # sizes beyond all bounds
                said = f"cannot load {path}: its record of the conversion makes no sense: {error}"
                raise FileFormatError(said, path) from error
    expected, own = twin.state_dict(), network.state_dict()
    made = {name: value for name, value in expected.items() if name not in own}  # by the conversion
    contradictions = state_mismatch(made, {name: value for name, value in tensors.items() if name in made})
    if contradictions:
        said = f"{path} does not hold what its record of the conversion says"
        raise FileFormatError(f"{said}: {listed(contradictions)}", path)
    mismatch = [str(one.message) for one in caught] or state_mismatch(expected, tensors)
    if mismatch:
        raise ValueError(f"{path} does not fit this network: {listed(mismatch)}")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors inside the block name the file."""
    try:
        yield
    except FileFormatError:
        raise
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {error}") from error


def load_legacy_(network: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Loads a checkpoint of the 2020 code into a converted network, in place, with the same posterior mean and KL.

    That code worked with Psi + 1e-4 mean(diag Psi) I, which moves E[W] by several per cent where M >= d; ours leaves
    Psi alone. Each side's D takes up the difference: d <- sqrt(d^2 + 1e-4 mean(diag(Z Z^T + D^2))). The buffers in
    which that code kept the prior are ignored: the prior follows from the options given to `bayesianize_`.

    Args:
        network: converted with the options that the checkpoint was trained with.
        state_dict: the checkpoint, as `torch.load(path, weights_only=True)` reads it; it is left alone.

    Raises:
        TypeError: `state_dict` is no dict of tensors.
        ValueError: the network is not Bayesian, names or shapes do not agree, or Z or D hold NaN or inf. An error
            leaves the network alone.
    """
    check_network(network)
    _check_state_dict(state_dict)
    layers = dict(network.named_modules(remove_duplicate=False))
    bayesian = {name for name, layer in layers.items() if isinstance(layer, BayesianLayer)}
    if not bayesian:
        raise ValueError("the network is not Bayesian: convert it with bnn.bayesianize_ as it was trained, then load")
    own = {key: value for key, value in state_dict.items() if not _is_prior(key, bayesian)}
    mismatch = state_mismatch(network.state_dict(), own)
    if mismatch:
        raise ValueError(f"the checkpoint does not fit this network: {listed(mismatch, shown=10)}")
    for name, layer in layers.items():
        for side in ("row", "col") if isinstance(layer, InducingBase) else ():
            z, d = (f"{name}.{part}_{side}".removeprefix(".") for part in ("z", "_d"))
            for key in (z, d):
                if not bool(torch.isfinite(own[key]).all()):
                    raise ValueError(f"the checkpoint's {key!r} holds NaN or inf, so it has no posterior to load")
            own[d] = _with_jitter(own[z], own[d])
    with unchanged_on_error(network, own):
        network.load_state_dict(own)


def state_mismatch(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How names, shapes and kinds of numbers in two state dicts differ, one line each; empty if they agree."""
    lines = [f"{name!r} is missing" for name in expected if name not in found]
    lines += [f"{name!r} is unexpected" for name in found if name not in expected]
    for name in expected:
        if name not in found:
            continue
        ours, theirs = expected[name], found[name]
        if _shape(ours) != _shape(theirs):
            lines.append(f"{name!r}: expected {_shape(ours)}, found {_shape(theirs)}")
        elif isinstance(ours, Tensor) and kind_of(ours.dtype) != kind_of(theirs.dtype):
            lines.append(f"{name!r}: expected {ours.dtype} or what casts to it, found {theirs.dtype}")
    return lines


def _shape(value: Any) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _packed(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors as safetensors wants them (contiguous, none sharing memory), and {alias: name of the same tensor}."""
    _refuse_uninitialised(state)
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


def _refuse_uninitialised(state: Mapping[str, Any]) -> None:
    lazy = [name for name, value in state.items() if is_lazy(value)]
    if lazy:
        raise ValueError(f"{listed(lazy)} not initialised yet: run a forward pass first")


def _read(path: str) -> tuple[dict[str, Tensor], Conversion]:
    """The whole state dict, aliases included, and the conversion."""
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
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"cannot load {path}: its record of the conversion cannot be read: {error}; a family of your own must be "
            "defined (imported) before loading",
            path,
        ) from error
    if "checksum" in metadata and metadata["checksum"] != _checksum_of_file(metadata, tensors):  # older files have none
        raise FileFormatError(f"{path} is damaged: its checksum does not fit; load another copy of it", path)
    return tensors | {alias: tensors[name] for alias, name in aliases.items()}, conversion


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


def checksum(text: str, tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of a text and of all tensors' bytes, in the order of their names: 7 GB/s where sha256 has 2."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        if tensors[name].numel():
            total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def _checksum_of_file(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A checksum of what `load_` reads: other metadata may be added to a file."""
    described = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    return f"crc32:{checksum(json.dumps([metadata['conversion'], metadata['aliases'], described]), tensors):08x}"


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


def _replay_(conversion: Conversion, network: nn.Module) -> None:
    """Converts the plain `network`, in place, as recorded; where the posterior starts is left open."""
    modules: dict[str, Any] = dict(network.named_modules(remove_duplicate=False))
    chosen = {modules[one.names[0]]: one for one in conversion.layers}
    if chosen:
        inference = {m: {"inference": one.family, **one.without_projection()} for m, one in chosen.items()}
        convert_chosen_(network, inference, {}, {}, keep=False)
    for module, one in chosen.items():
        module.options = one.parsed(one.options)
    for record in conversion.globals:
        owner = modules[record.network]
        register_global_inducing_weights_(owner, **record.options | {"init": "paper"}, cat_dim=record.cat_dim)
        getattr(owner, NAME).options = InducingOptions(**record.options)


def _with_jitter(z: Tensor, raw: Tensor) -> Tensor:
    """The raw values of sqrt(d^2 + 1e-4 mean(diag(Z Z^T + D^2))) for Z (M, d_side) and the raw values of d (M,)."""
    variance = positive(raw.double()).square()  # (M,)
    mean_diagonal = (z.double().square().sum(1) + variance).mean()
    return inverse_softplus((variance + LEGACY_JITTER * mean_diagonal).sqrt()).to(raw.dtype)


def _check_state_dict(state_dict: Any) -> None:
    """Raises TypeError unless `state_dict` maps names to tensors."""
    if not isinstance(state_dict, Mapping):
        got = type(state_dict).__name__
        raise TypeError(f"expected a state dict, as torch.load(path, weights_only=True) reads it, got {got}")
    wrong = [f"{key!r}: {type(value).__name__}" for key, value in state_dict.items() if not isinstance(value, Tensor)]
    if wrong or not all(isinstance(key, str) for key in state_dict):
        raise TypeError(
            f"expected a state dict {{name: tensor}}, found {listed(wrong or map(repr, state_dict))}; if it is a whole "
            'checkpoint, pass the state dict inside it, as checkpoint["state_dict"]'
        )


def _is_prior(key: str, bayesian: set[str]) -> bool:
    layer, _, name = key.rpartition(".")
    return name in LEGACY_BUFFERS and layer in bayesian
