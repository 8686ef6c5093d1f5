"""Which layers get a Laplace approximation: the last that runs, all inducing ones, or those that are named."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bnn._common.text import listed, nearest
from bnn._conversion.curvature import at_mean, check_output
from bnn._conversion.limits import why_not
from bnn._engine.fold import one_by_one
from bnn._engine.inputs import evaluating, number_of_inputs
from bnn.nn.base import BayesianLayer, layer_types, plain_weights
from bnn.nn.families.inducing import InducingBase
from bnn.nn.families.q.global_slice import GlobalSlice
from bnn.nn.pruning import masked

LARGEST = 8192  # entries of a row of a plain layer: its second moments take half a gigabyte

Layers = str | nn.Module | Sequence[str | nn.Module]


def chosen_layers(network: nn.Module, asked: Layers, x: Any) -> dict[str, nn.Module]:
    """The layers that `asked` means, by name, in the order in which they run on inputs x.

    Raises:
        ValueError: there are none, they do not run, or they cannot have one.
    """
    ran = running_layers(network, x)
    names = {module: name for name, module in reversed(list(network.named_modules()))}
    if asked == "last":
        if not ran:
            raise ValueError(
                f"no layer that could have a posterior was seen to run: expected some of {_kinds()} (inside "
                "torch.compile layers are not seen: call laplace_ on the network as it was before)"
            )
        found = ran[-1:]
    elif asked == "all":
        found = [layer for layer in ran if isinstance(layer, InducingBase)]
        if not found:
            raise ValueError(
                'layers="all" means the inducing layers, and there are none: convert the network with '
                'bnn.bayesianize_(net, "inducing"), or name the layers; "last" takes plain networks, too'
            )
    else:
        several = [asked] if isinstance(asked, str | nn.Module) else list(asked)
        if not several:
            raise ValueError("layers is empty, so there is nothing to do: expected 'last', 'all', names or globs")
        wanted = {layer for one in several for layer in _matching(network, one)}
        silent = [names[layer] for layer in wanted if layer not in ran]
        if silent:
            raise ValueError(f"layers that did not run on these data: {listed(silent)}; leave them out")
        found = [layer for layer in ran if layer in wanted]
    readers = Counter(id(p) for module in network.modules() for p in module._parameters.values() if p is not None)
    for layer in found:
        _check(names[layer], layer, readers)
    return {names[layer]: layer for layer in found}


def running_layers(network: nn.Module, x: Any) -> list[nn.Module]:
    """The layers that could have a posterior, or have one, in the order in which they end their last call."""
    ran: dict[nn.Module, None] = {}

    def note(layer: nn.Module, args: Any, output: Any) -> None:
        ran.pop(layer, None)
        ran[layer] = None

    covered = tuple(layer_types())
    handles = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, covered)]
    try:
        with torch.no_grad(), evaluating(network):
            check_output(one_by_one(network, [x], [at_mean(network, number_of_inputs(x) or 1)])[0])
    finally:
        for handle in handles:
            handle.remove()
    return list(ran)


def _matching(network: nn.Module, key: Any) -> list[nn.Module]:
    """The layers below a module, a name or a glob."""
    modules = dict(network.named_modules(remove_duplicate=False))
    covered = tuple(layer_types())
    if isinstance(key, nn.Module):
        below = list(key.modules()) if key in modules.values() else []
    elif not isinstance(key, str):
        raise TypeError(f"layers must be 'last', 'all', names, globs or modules, got {key!r}")
    elif key in modules:
        below = list(modules[key].modules())
    else:
        below = [module for name, module in modules.items() if fnmatch.fnmatchcase(name, key)]
    found = [module for module in below if isinstance(module, covered)]
    if not found:
        hint = nearest(key, list(modules)) if isinstance(key, str) else ""
        shown = repr(key) if isinstance(key, str) else f"a {type(key).__name__}"
        raise ValueError(
            f"layers: {shown} names no {_kinds()} of this network{hint}; expected 'last', 'all', a name or a glob"
        )
    return found


def _check(name: str, layer: nn.Module, readers: Counter[int]) -> None:
    """Raises ValueError where a layer cannot have a Laplace approximation."""
    shown = f"layer {name or 'the network'!r}"
    if isinstance(layer, InducingBase):
        if isinstance(layer.q, GlobalSlice):
            raise ValueError(
                f"{shown} shares global inducing weights, over which a layer has no posterior of its own: remove them "
                "first (the handle of register_global_inducing_weights_)"
            )
        if layer.q.members:
            raise ValueError(
                f"{shown} is an Ensemble-U of {layer.q.members} members, which stand for its uncertainty: use "
                'q_inducing="diagonal" ("ffg-u"), or a bnn.Ensemble of several networks, each with a Laplace of its own'
            )
        if masked(layer):
            raise ValueError(
                f"{shown} is pruned, and Laplace's approximation turns Z, so that the zeros would not stay: choose "
                "other layers with layers=, or prune after it"
            )
        return
    if isinstance(layer, BayesianLayer):
        raise ValueError(
            f"{shown} has a posterior of the family {layer.family!r}; Laplace's approximation is for inducing and "
            "plain layers: convert it otherwise, or choose others with layers="
        )
    reason = why_not(layer, "inducing", readers)
    if reason:
        raise ValueError(
            f"{shown} ({type(layer).__name__}) cannot have a posterior: {reason}; or choose others, layers="
        )
    check_width(name, layer)


def check_width(name: str, layer: nn.Module) -> None:
    """Raises ValueError where a plain layer has too many inputs for their second moments."""
    weight, bias = plain_weights(layer)
    width = weight[0].numel() + (bias is not None)
    if width > LARGEST:
        raise ValueError(
            f"layer {name or 'the network'!r} has {width} inputs, and Laplace's approximation of such a layer takes "
            f'{width} x {width} numbers; at most {LARGEST}: convert the network with bnn.bayesianize_(net, "inducing", '
            "budget=...) first, and leave inducing_cols out"
        )


def _kinds() -> str:
    return ", ".join(one.__name__ for one in layer_types())
