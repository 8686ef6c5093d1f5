"""Networks as files: safetensors plus JSON metadata that records the conversion. Nothing here is a pickle."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.atomic import check_target, write_atomically
from bnn._common.text import listed
from bnn._conversion.file_format import FileFormatError as FileFormatError
from bnn._conversion.file_format import Path as Path
from bnn._conversion.file_format import read, refuse_uninitialised, to_bytes
from bnn._conversion.limits import kind_of
from bnn._conversion.record import Conversion, skeleton
from bnn._conversion.undo import unchanged_on_error
from bnn._engine.forward import mark_root_
from bnn._engine.inputs import check_network
from bnn._engine.temperature import forget_temperature_, set_temperature_
from bnn.bayesianize import convert_chosen_
from bnn.functional.linalg import inverse_softplus, positive
from bnn.global_inducing import register_global_inducing_weights_
from bnn.nn.base import LEGACY_BUFFERS, BayesianLayer
from bnn.nn.families.inducing import InducingBase, InducingOptions
from bnn.nn.global_inducing import NAME
from bnn.nn.kept_dropout import KEPT, KeptDropoutOptions
from bnn.nn.pruning import expect_masks_

LEGACY_JITTER = 1e-4  # what the 2020 code added to Psi, in units of its mean diagonal


def save(network: nn.Module, path: Path) -> None:
    """Writes a network to one file: the tensors of its state dict, how it was converted, and its temperature.

    The file appears whole or not at all; it replaces an older one and keeps its permissions. Shared tensors (tied
    layers) are stored once, of pruned ones (`bnn.prune_`) what is kept and a bit for every entry. A checksum of
    everything that `bnn.load_` reads goes with it.

    Args:
        network: a Bayesian network, or a plain one.
        path: the file, in a folder that exists; `.safetensors` is the usual ending.

    Raises:
        ValueError: the state dict holds something that is not a tensor with data.
        FileNotFoundError: there is no such folder.
        FileExistsError, IsADirectoryError: the path names a pipe, a device or a folder.

    >>> import tempfile, bnn
    >>> net, fresh = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bnn.save(net, f"{folder}/net.safetensors")
    ...     bnn.load_(fresh, f"{folder}/net.safetensors")
    >>> fresh
    InducingLinear(in_features=3, out_features=2, bias=True, family=inducing, M=2x2, q=diagonal, prior_sd=1)
    """
    check_network(network)
    path = os.path.realpath(path)  # a link stays a link: what it names is replaced
    check_target(path)
    write_atomically(to_bytes(network, path), path)


def load_(network: nn.Module, path: Path) -> None:
    """Converts a plain network, in place, as the file of `bnn.save` records, then loads its tensors.

    An error, whatever it is, leaves `network` as it was. Tensors are cast to the network's dtype and device, but not to
    another kind (integers do not become weights); NaN and inf are loaded as they were saved. A frozen weight freezes
    its posterior. The temperature (`bnn.calibrate_`) is the file's; files without one load with T = 1.

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
    tensors, conversion, temperature = read(path)
    _check_replay(network, tensors, conversion, path)
    with unchanged_on_error(network, network.state_dict().keys() & tensors.keys()):
        with _naming(path):
            _replay_(conversion, network)
        network.load_state_dict(tensors)
        forget_temperature_(network)
        set_temperature_(network, temperature)


def _check_replay(network: nn.Module, tensors: Mapping[str, Tensor], conversion: Conversion, path: str) -> None:
    """Raises unless the conversion and the tensors of a file fit `network`; tries them on a twin without memory."""
    with _naming(path):
        conversion.check_fits(network)
        refuse_uninitialised(network.state_dict())
        twin = skeleton(network)
        with warnings.catch_warnings(record=True) as caught:  # a layer left deterministic is a warning, after the fact
            warnings.simplefilter("always")
            try:
                _replay_(conversion, twin)
                _expect_masks_(twin, tensors)
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
        forget_temperature_(network)


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
    for name, sampling in conversion.dropouts.items():
        KEPT[type(modules[name])].convert_(modules[name])
        modules[name].options = KeptDropoutOptions(sampling)
    if conversion.dropouts:
        mark_root_(network)


def _expect_masks_(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Makes room, in place, for the masks of pruned layers among the tensors of a file."""
    for name, module in network.named_modules(remove_duplicate=False):
        if isinstance(module, BayesianLayer):
            expect_masks_(module, f"{name}." if name else "", tensors)


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
