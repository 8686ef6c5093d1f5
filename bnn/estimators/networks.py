"""The network of an estimator: its architecture, and the posterior that a method puts on it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_size
from bnn._conversion.methods import PLAIN, Method, full_rank, layer_shape
from bnn.bayesianize import bayesianize_
from bnn.ensemble import Ensemble
from bnn.nn.base import layer_types
from bnn.nn.nets import FCN


def plain_network(network: Any, hidden: Any, in_features: int, out_features: int) -> nn.Module:
    """A plain network (N, in_features) -> (N, out_features).

    Args:
        network: None for a multilayer perceptron; a module, of which a copy is made; or a function (in_features,
            out_features) -> module.
        hidden: widths of the perceptron's hidden layers.
    """
    if network is None:
        if not isinstance(hidden, Sequence) or isinstance(hidden, str):
            raise ValueError(f"hidden must be the widths of the hidden layers, as (64, 64); got {hidden!r}")
        for width in hidden:
            check_size("a width of hidden", width)
        return FCN([in_features, *map(int, hidden), out_features])
    made = copy.deepcopy(network) if isinstance(network, nn.Module) else _called(network, in_features, out_features)
    shape = _output_shape(made, in_features)
    if shape != (2, out_features):
        raise ValueError(
            f"network must turn (N, {in_features}) into (N, {out_features}): one output per class, or per target (two "
            f'with noise="varying"); an input of shape (2, {in_features}) gave {shape}'
        )
    return made


def convert_(network: nn.Module, method: Method, options: dict[str, Any] | None, members: int | None) -> nn.Module:
    """Puts the posterior of `method` on a plain network, in place; returns it, or the ensemble of its kind.

    Args:
        options: of `bnn.bayesianize_`, beside or instead of the method's.
        members: of an ensemble; None: as many as the method has.
    """
    given = dict(options or {})
    if method.family == PLAIN and given:
        raise ValueError(f"method={method.name!r} has no posterior over weights, so it takes no options; got {given}")
    if method.networks > 1:
        network = Ensemble(network, members or method.networks)
    if method.family == PLAIN:
        return network
    if method.members > 1:
        given = {"ensemble_size": members or method.members, **given}
    layers = [m for m in network.modules() if type(m) in set(layer_types())]
    if not layers:
        raise ValueError("network has no layer that a posterior could be put on, such as Linear or Conv2d")
    ranks = {layer: full_rank(layer, given.get("kernel", "paper")) for layer in layers}
    shapes = {layer: layer_shape(layer, method.family) for layer in layers}
    entries = {layer: method.layer_options(*shapes[layer], given, ranks[layer]) | given for layer in layers}
    bayesianize_(network, {layer: {"inference": method.family, **entry} for layer, entry in entries.items()})
    return network


def _called(network: Any, in_features: int, out_features: int) -> nn.Module:
    if not callable(network):
        raise TypeError(
            "network must be a torch module, a function (in_features, out_features) -> module, or None; got "
            f"{type(network).__name__}"
        )
    made = network(in_features, out_features)
    if not isinstance(made, nn.Module):
        raise TypeError(f"network(in_features, out_features) must return a torch module, got {type(made).__name__}")
    return made


def _output_shape(network: nn.Module, in_features: int) -> tuple[int, ...]:
    """What an input of two rows becomes."""
    trial = copy.deepcopy(network).cpu().eval()
    with torch.no_grad():
        output = trial(torch.zeros(2, in_features, device="cpu"))
    return tuple(output.shape) if isinstance(output, Tensor) else ()
