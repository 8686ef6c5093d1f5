"""How a layer gets its posterior: what it starts from, taking it on, starting anew, and the units of state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Weights(NamedTuple):
    """What the plain layer would hold: a weight and a bias, or None where it has none."""

    weight: Tensor
    bias: Tensor | None

    def copied(self) -> Weights:
        """Copies in the order in memory that a plain layer's have, also where some dimensions are 1."""
        copies = (None if part is None else part.clone(memory_format=torch.contiguous_format) for part in self)
        return Weights(*copies)  # type: ignore[arg-type]


class Start(NamedTuple):
    """What a posterior starts from, by name."""

    trained: dict[str, Tensor]  # become parameters
    fixed: dict[str, Tensor]  # become buffers
    objects: dict[str, Any]  # become plain attributes


def plain_weights(layer: nn.Module) -> Weights:
    """The weights of a plain layer, detached."""
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    return Weights(weight.detach(), None if bias is None else bias.detach())


def adopt_(layer: Any, options: Any, start: Start) -> None:
    """Puts a posterior, in place, where a layer has the parameters of a plain one."""
    weight, bias = layer._parameters.pop("weight"), layer._parameters.pop("bias", None)
    assert weight is not None
    layer.options = layer.settled(options, Weights(weight, bias))
    layer.weight_shape, layer.has_bias = weight.shape, bias is not None
    layer.d_out, layer.d_in = layer.to_matrix(Weights(weight, bias)).shape
    layer.__dict__.update(start.objects)
    for name, value in start.fixed.items():
        layer.register_buffer(name, value)
    for name, value in start.trained.items():
        source = bias if bias is not None and "bias" in name else weight
        layer.register_parameter(name, nn.Parameter(value, requires_grad=source.requires_grad))


def restart_(layer: Any, params: Mapping[str, Tensor | None]) -> None:
    """Starts a layer's posterior anew, in place, from {"weight": ..., "bias": ...} in the plain layer's shapes."""
    given = {name: value.detach() for name, value in params.items() if value is not None}
    expected = {"weight": tuple(layer.weight_shape)} | ({"bias": (layer.d_out,)} if layer.has_bias else {})
    got = {name: tuple(value.shape) for name, value in given.items()}
    if got != expected:
        raise ValueError(f"expected weights of shapes {expected}, got {got}")
    like = next(layer.parameters())
    weights = Weights(given["weight"].to(like), given["bias"].to(like) if layer.has_bias else None)
    start = layer.start(weights, layer.options)
    tensors, own = start.trained | start.fixed, layer._parameters | layer._buffers
    if not tensors.keys() <= own.keys():
        if hasattr(layer, "parametrizations"):
            raise ValueError(
                "a parametrized layer cannot start anew: set its weights before, or remove_parametrizations"
            )
        raise ValueError("under global inducing weights a layer's u is not its own; set its weights before")
    with torch.no_grad():
        for name, value in tensors.items():
            getattr(layer, name).copy_(value)
    layer.energy_kept = None  # of other weights


def fresh_weights(layer: Any) -> dict[str, Tensor]:
    """Random weights as the plain layer starts with."""
    like = next(layer.parameters())
    empty = {"weight": like.new_empty(layer.weight_shape)}
    if layer.has_bias:
        empty["bias"] = like.new_empty(layer.d_out)
    stand_in = SimpleNamespace(**layer.__dict__, **({"bias": None} | empty))
    layer.plain.reset_parameters(stand_in)
    return empty


# ---- state dicts -----------------------------------------------------------------------------------------------------


def state_units(layer: Any, prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor | float]:
    """`layer.units()` by the names of a state dict, for those of its tensors that have the shapes of the parameters."""
    units = {name: unit for name, unit in layer.units().items() if name in layer._parameters}
    shapes = {name: getattr(state.get(prefix + name), "shape", None) for name in units}
    return {prefix + name: unit for name, unit in units.items() if shapes[name] == getattr(layer, name).shape}
