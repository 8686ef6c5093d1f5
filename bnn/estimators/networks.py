"""The network of an estimator: its architecture, the posterior of its method, and the scaling of columns before it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnn._common.checks import check_size
from bnn._conversion.methods import PLAIN, Method, full_rank, layer_shape
from bnn.bayesianize import bayesianize_
from bnn.ensemble import Ensemble
from bnn.nn.base import layer_types
from bnn.nn.nets import FCN
from bnn.train.converted_stage import of_limited_rank

Floats = NDArray[np.float64]


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


def convert_(
    network: nn.Module, method: Method, options: dict[str, Any] | None, members: int | None, activations: Any = None
) -> nn.Module:
    """Puts the posterior of `method` on a plain network, in place; returns it, or the ensemble of its kind.

    Args:
        options: of `bnn.bayesianize_`, beside or instead of the method's.
        members: of an ensemble; None: as many as the method has.
        activations: inputs whose outputs layers of limited rank keep from the start; others take nothing from it.
    """
    given = dict(options or {})
    if method.family == PLAIN and given:
        raise ValueError(f"method={method.name!r} has no posterior over weights, so it takes no options; got {given}")
    if method.networks > 1:
        network = Ensemble(network, members or method.networks)
    if method.family == PLAIN:
        return network
    if method.member_option is not None:
        given = {method.member_option: members or method.members, **given}
    layers = [m for m in network.modules() if type(m) in set(layer_types())]
    if not layers:
        raise ValueError("network has no layer that a posterior could be put on, such as Linear or Conv2d")
    ranks = {layer: full_rank(layer, given.get("kernel", "paper")) for layer in layers}
    shapes = {layer: layer_shape(layer, method.family) for layer in layers}
    entries = {layer: method.layer_options(*shapes[layer], given, ranks[layer]) | given for layer in layers}
    inference = {layer: {"inference": method.family, **entry} for layer, entry in entries.items()}
    keeps = activations is not None and of_limited_rank({"inference": inference})
    bayesianize_(network, inference, **({"activations": activations} if keeps else {}))
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


@dataclass(frozen=True)
class Scaling:
    """z = (x - mean) / sd, column by column, in float64; a column without spread keeps its unit (sd = 1).

    Args:
        mean, sd: (D,).
    """

    mean: Floats
    sd: Floats

    @classmethod
    def learned(cls, columns: Floats) -> Scaling:
        """From training data (N, D); what is NaN does not count.

        >>> Scaling.learned(np.array([[1.0, 7.0], [3.0, 7.0]]))
        Scaling(mean=array([2., 7.]), sd=array([1., 1.]))
        """
        mean = np.nanmean(columns, axis=0)
        sd = np.sqrt(np.nanmean(np.square(columns - mean), axis=0))
        smallest = 10 * np.finfo(np.float64).eps * np.nanmax(np.abs(columns), axis=0)  # below it a spread is rounding
        return cls(mean, np.where(sd > smallest, sd, 1.0))

    @classmethod
    def none(cls, columns: int) -> Scaling:
        """Leaves values as they are."""
        return cls(np.zeros(columns), np.ones(columns))

    def scaled(self, columns: Floats) -> Floats:
        """(..., D) in units of sd."""
        return np.asarray((columns - self.mean) / self.sd)

    def own_units(self, scaled: Floats) -> Floats:
        """What `scaled` was made from."""
        return np.asarray(scaled * self.sd + self.mean)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"mean": self.mean.tolist(), "sd": self.sd.tolist()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """What `to_dict` gave."""
        return cls(np.array(stored["mean"], dtype=np.float64), np.array(stored["sd"], dtype=np.float64))
