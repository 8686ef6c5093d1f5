"""What a network is: where its posterior ended relative to its caps, how large it is, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.timing import interleaved
from bnn._engine.inputs import device_of
from bnn._engine.members import combinations, mixtures
from bnn.evaluation.pieces import LayerPosterior, Posterior, Scale, Size, Time
from bnn.evaluation.predictor import Predictor
from bnn.nn.base import BayesianLayer
from bnn.nn.families.inducing import InducingBase
from bnn.nn.global_inducing import GlobalInducing
from bnn.parameters import parameter_count
from bnn.prediction import predict

AT_CAP = 0.99  # from this share of its cap on a value counts as being at it
TIMED = 500  # inputs that are predicted together, at most


def posterior_of(network: nn.Module) -> Posterior | None:
    """The state of all Bayesian layers of `network`; None for a plain one."""
    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, BayesianLayer)]
    if not layers:
        return None
    with torch.no_grad():
        found = tuple(LayerPosterior(name, layer.family, sd_of(layer), lamda_of(layer)) for name, layer in layers)
    sds, lamdas = ([one.sd for one in found], [one.lamda for one in found])
    return Posterior(pooled(sds), pooled(lamdas), found)


def lamda_of(layer: BayesianLayer) -> Scale | None:
    """lamda of an inducing layer; None where W is a point given U, or there is no U."""
    lamda = layer.lamda() if isinstance(layer, InducingBase) else None
    return None if lamda is None else scale(lamda, layer.options.max_lamda)


def sd_of(layer: BayesianLayer) -> Scale | None:
    """The standard deviations of the weights, or of U; None where they are a point, or another module's."""
    sds, cap = layer.sds_and_cap()
    return None if sds is None else scale(sds, cap)


def scale(values: Tensor, cap: float | None = None) -> Scale:
    """Summary of positive values of any shape."""
    values = values.detach().double().flatten().cpu()
    count, mean, largest = len(values), float(values.mean()), float(values.max())
    if not cap:
        return Scale(count, mean, largest)
    ratios = values / cap
    return Scale(count, mean, largest, cap, float(ratios.mean()), float((ratios >= AT_CAP).double().mean()), count)


def pooled(scales: Sequence[Scale | None]) -> Scale | None:
    """One summary of the values of all layers, each value counting the same."""
    present = [one for one in scales if one is not None]
    if not present:
        return None
    count, capped = sum(one.count for one in present), sum(one.capped for one in present)
    mean = sum(one.count * one.mean for one in present) / count
    largest = max(one.largest for one in present)
    if not capped:
        return Scale(count, mean, largest)
    caps = {one.cap for one in present}
    ratio, at_cap = (
        sum(one.capped * (value or 0.0) for one, value in zip(present, values, strict=True)) / capped
        for values in ([one.ratio for one in present], [one.at_cap for one in present])
    )
    return Scale(count, mean, largest, caps.pop() if len(caps) == 1 else None, ratio, at_cap, capped)


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


def prediction_time(predictor: Predictor, x: Tensor, plain: nn.Module | None = None, rounds: int = 5) -> Time:
    """Seconds of a prediction with all draws, and of one pass of the plain network, taking turns in one process.

    Args:
        predictor: the network with its likelihood and number of draws.
        x: prepared inputs (N, ...); the first 500 are used.
        plain: a plain network of the same architecture, whatever its weights.
        rounds: that count, after one to warm up.
    """
    x = x[:TIMED].to(device_of(predictor.network))
    network, likelihood, samples = predictor.network, predictor.likelihood, predictor.samples
    contestants: dict[str, Callable[[], Any]] = {}
    contestants["draws"] = lambda: predict(network, x, samples, likelihood, torch.Generator().manual_seed(0))
    if plain is not None:
        contestants["plain"] = partial(_pass, plain.to(x.device).eval(), x)
    times = interleaved(contestants, rounds, device=x.device)
    return Time(len(x), times["draws"].median, times["plain"].median if "plain" in times else None, rounds)


@torch.no_grad()
def _pass(plain: nn.Module, x: Tensor) -> None:
    plain(x)
