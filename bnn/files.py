"""Networks as files: safetensors plus JSON metadata that records the conversion. Nothing here is a pickle."""

from __future__ import annotations

import importlib.metadata
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnn._common.atomic import write_atomically
from bnn._common.text import listed
from bnn._conversion.record import Conversion, skeleton
from bnn._engine.inputs import check_network
from bnn.bayesianize import bayesianize_
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
    """A file that `bnn.load_` cannot read: foreign, damaged, or of a newer version."""


def save(network: nn.Module, path: Path) -> None:
    """Writes a network to one file: the tensors of its state dict, and how it was converted.

    The file appears whole or not at all, and replaces an older one. Shared tensors (tied layers) are stored once.

    Args:
        network: a Bayesian network, or a plain one.
        path: the file, in a folder that exists; `.safetensors` is the usual ending.

    Raises:
        ValueError: the state dict holds something that is not a tensor with data.
        FileNotFoundError: there is no such folder.

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
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it first")
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    tensors, aliases = _packed(_tied_state(network))
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "bnn_version": _version(),
        "conversion": Conversion.of(network).to_json(),
        "aliases": json.dumps(aliases),
    }
    try:
        data = safetensors.torch.save(tensors, metadata)
    except KeyError as error:
        raise ValueError(f"cannot write {path}: safetensors has no type {error.args[0]}") from None
    write_atomically(data, path)


def load_(network: nn.Module, path: Path) -> None:
    """Converts a plain network, in place, as the file of `bnn.save` records, then loads its tensors.

    Everything is checked first: an error leaves `network` as it was. Tensors are cast to the network's dtype and
    device; a frozen weight freezes its posterior.

    Args:
        network: a plain network of the architecture that was saved.
        path: a file that `bnn.save` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is damaged, not ours, or written by a newer version.
        ValueError: the network does not fit, or is Bayesian already.
    """
    check_network(network)
    tensors, conversion = _read(path)
    try:
        conversion.check_fits(network)
        _refuse_uninitialised(network.state_dict())
        twin = skeleton(network)
        with warnings.catch_warnings(record=True) as caught:  # a layer left deterministic is a warning, after the fact
            warnings.simplefilter("always")
            _replay_(conversion, twin)
        mismatch = [str(one.message) for one in caught] or state_mismatch(twin.state_dict(), tensors)
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {error}") from error
    if mismatch:
        raise ValueError(f"{path} does not fit this network: {listed(mismatch)}")
    _replay_(conversion, network)
    network.load_state_dict(tensors)


def load_legacy_(network: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Loads a checkpoint of the 2020 code into a converted network, in place, with the same posterior mean and KL.

    That code worked with Psi + 1e-4 mean(diag Psi) I, which moves E[W] by several per cent where M >= d; ours leaves
    Psi alone. Each side's D takes up the difference: d <- sqrt(d^2 + 1e-4 mean(diag(Z Z^T + D^2))). The buffers in
    which that code kept the prior are ignored: the prior follows from the options given to `bayesianize_`.

    Args:
        network: converted with the options that the checkpoint was trained with.
        state_dict: the checkpoint, as `torch.load(path, weights_only=True)` reads it; it is left alone.

    Raises:
        ValueError: the network is not Bayesian, or names or shapes do not agree; the network is left alone then.
    """
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
            own[d] = _with_jitter(own[z], own[d])
    network.load_state_dict(own)


def state_mismatch(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How the names and shapes of two state dicts differ, one line each; empty if they agree."""
    lines = [f"{name!r} is missing" for name in expected if name not in found]
    lines += [f"{name!r} is unexpected" for name in found if name not in expected]
    for name in expected:
        if name in found and _shape(expected[name]) != _shape(found[name]):
            lines.append(f"{name!r}: expected {_shape(expected[name])}, found {_shape(found[name])}")
    return lines


def _shape(value: Any) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _tied_state(network: nn.Module) -> dict[str, Any]:
    """The state dict, in which what a tied layer trains in other units is one tensor under all its names."""
    state: dict[str, Any] = dict(network.state_dict())
    first: dict[int, str] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        known = first.setdefault(id(module), prefix)
        names = module.units() if isinstance(module, BayesianLayer) and known != prefix else ()
        state.update({prefix + part: state[known + part] for part in names if known + part in state})
    return state


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


def _read(path: Path) -> tuple[dict[str, Tensor], Conversion]:
    """The whole state dict, aliases included, and the conversion."""
    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot load {path}: it is a folder; expected a file that bnn.save wrote")
    if not os.path.exists(path):
        raise FileNotFoundError(f"cannot load {path}: there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata, file.keys())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator of its own)
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"cannot load {path}: {_foreign(path)} ({error})") from error
    try:
        conversion = Conversion.from_json(metadata["conversion"])
        aliases = json.loads(metadata["aliases"])
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}, conversion
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"cannot load {path}: its record of the conversion cannot be read: {error}; a family of your own must be "
            "defined (imported) before loading"
        ) from error


def _check_format(path: str, metadata: Mapping[str, str], names: Iterable[str]) -> None:
    """Raises FileFormatError unless the metadata are ours, and not newer than this version."""
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} is a safetensors file without a record of the conversion; it seems to hold plain weights "
            f"({listed(names)}): use network.load_state_dict(safetensors.torch.load_file(path))"
        )
    version = metadata.get("format_version", "")
    if not version.isdecimal():
        raise FileFormatError(f"{path} has no valid format version, found {version!r}")
    if int(version) > FORMAT_VERSION:
        writer = metadata.get("bnn_version", "unknown")
        raise FileFormatError(
            f"{path} was written by a newer version of bayesianize ({writer}, format {version}; this one reads up to "
            f"{FORMAT_VERSION}): upgrade to load it"
        )


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
        bayesianize_(network, inference)
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


def _is_prior(key: str, bayesian: set[str]) -> bool:
    layer, _, name = key.rpartition(".")
    return name in LEGACY_BUFFERS and layer in bayesian
