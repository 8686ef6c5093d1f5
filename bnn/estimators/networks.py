"""The network of an estimator: its architecture, and the posterior that a method puts on it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_size
from bnn.bayesianize import bayesianize_
from bnn.ensemble import Ensemble
from bnn.nn.base import layer_types
from bnn.nn.nets import FCN

METHODS = ["inducing", "ensemble-u", "ffg", "fcg", "ensemble", "deterministic"]

RANK = 16  # of an inducing layer, or more: sqrt(d)

# Scales start at their caps: a run of some hundred steps has no time to bring them there.
CAPPED: dict[str, dict[str, Any]] = {
    "inducing": {"max_lamda": 0.05, "init_lamda": 0.05, "max_sd_u": 0.1},
    "ensemble-u": {"max_lamda": 0.05, "init_lamda": 0.05, "q_inducing": "ensemble"},
    "ffg": {"max_sd": 0.1, "init_sd": 0.05},
    "fcg": {"init_sd": 0.05},
}


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


def convert_(network: nn.Module, method: str, options: dict[str, Any] | None, members: int) -> nn.Module:
    """Puts the posterior of `method` on a plain network, in place; returns it, or the deep ensemble of its kind."""
    given = dict(options or {})
    if method in ("ensemble", "deterministic"):
        if given:
            raise ValueError(f"method={method!r} has no posterior over weights, so it takes no options; got {given}")
        return Ensemble(network, members) if method == "ensemble" else network
    family = "inducing" if method == "ensemble-u" else method
    shared: dict[str, Any] = {"inference": family, **CAPPED[method]}
    if method == "ensemble-u":
        shared["ensemble_size"] = members
    layers = [m for m in network.modules() if type(m) in set(layer_types())]
    if not layers:
        raise ValueError("network has no layer that a posterior could be put on, such as Linear or Conv2d")
    sizes = _inducing_sizes if family == "inducing" else _no_sizes
    bayesianize_(network, {layer: {**shared, **sizes(layer), **given} for layer in layers})
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


def _inducing_sizes(layer: Any) -> dict[str, Any]:
    """Full rank for narrow sides, so that a head tells its classes apart."""
    d_out, d_in = layer.weight.shape[0], layer.weight[0].numel() + (layer.bias is not None)
    rows, cols = (min(d, max(RANK, math.isqrt(d))) for d in (d_out, d_in))
    return {"inducing_rows": rows, "inducing_cols": cols}


def _no_sizes(layer: Any) -> dict[str, Any]:
    return {}
