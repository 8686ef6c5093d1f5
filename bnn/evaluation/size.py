"""How large a network is, next to the plain network it stands for."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from bnn._engine.members import combinations, mixtures
from bnn.evaluation.pieces import Size
from bnn.nn.base import BayesianLayer
from bnn.nn.global_inducing import GlobalInducing
from bnn.parameters import parameter_count


def size_of(network: nn.Module) -> Size:
    """Parameters and bytes, and the parameters of one plain network of this architecture."""
    parameters, plain = parameter_count(network), plain_parameters(network)
    ratio = parameters / plain if plain else 1.0
    return Size(parameters, stored_bytes(network), combinations(network), plain, ratio)


def plain_parameters(network: nn.Module) -> int:
    """The parameters of the network before its layers were converted; of an ensemble, those of one member."""
    seen: set[int] = set()
    total = 0
    for module in one_network(network):
        if isinstance(module, BayesianLayer):
            if not isinstance(module, GlobalInducing):  # stands for no layer
                total += module.weight_shape.numel() + module.has_bias * module.d_out
            continue
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen |= {id(parameter) for parameter in own}
        total += sum(parameter.numel() for parameter in own)
    return total


def one_network(network: nn.Module) -> Iterator[nn.Module]:
    """The modules of `network` with the first member of every ensemble only."""
    shown = {module for one in mixtures(network) for module in one.members[0].modules()}
    others = {module for one in mixtures(network) for member in one.members for module in member.modules()} - shown
    return (module for module in network.modules() if module not in others)


def stored_bytes(network: nn.Module) -> int:
    """Bytes of the tensors of the state dict, those that share their memory counted once."""
    tensors = [value for value in network.state_dict().values() if isinstance(value, Tensor)]
    views = {(t.data_ptr(), t.dtype, t.shape, t.stride()): t for t in tensors if t.numel()}
    return sum(tensor.numel() * tensor.element_size() for tensor in views.values())
