"""How much of a trained network survives its conversion to inducing weights, before any training.

    original      the network as it is
    plain         the paper's matrix, truncated: the least loss of weights
    weighted      the paper's matrix, the least loss of each layer's outputs on the inputs of the original network
    split         split kernels where they save parameters, truncated
    both          split kernels, the least loss of outputs (alternating)
    paper matrix, sequential    `activations=`, layer after layer, each on what the converted ones before it give
    sequential    the same with split kernels
    budget        the same with the sizes that `budget=` chooses, for as many parameters as sequential has
    whole         what a user would call: `bayesianize_(net, "inducing", budget=fraction, activations=...)`, all layers

All but the last two are uniform: every converted layer has the largest rank within the fraction of its parameters.
"""

from __future__ import annotations

import copy
import functools
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bnn
from bnn._conversion.layer_rows import Sums
from bnn.functional.kernels import from_matrix, matrix_shape, settled_kernel
from bnn.functional.low_rank import low_rank, own_moments
from bnn.nn.base import plain_weights
from experiments.nets import NETS, trained
from experiments.scores import class_scores

KERNELS = {"plain": "paper", "weighted": "paper", "paper matrix, sequential": "paper"}  # of the others: "auto"
WEIGHTED = ("weighted", "both")
SEQUENTIAL = ("paper matrix, sequential", "sequential", "budget")


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Scores on the first `test` test inputs, from the first `images` training inputs, whose labels nobody reads."""
    plain, data = loaded(settings["net"])
    start = settings["start"]
    begin = time.process_time()  # of one thread: other programs do not count
    net, more = plain, {}
    if start != "original":
        x = data.train.inputs(slice(0, settings["images"]))
        net = converted(plain, names(settings["net"], plain), settings["fraction"], start, x)
        more = {"start_cpu_seconds": time.process_time() - begin, "share": share(plain, net), "parameters": count(net)}
    test = data.test.subset(slice(0, settings["test"]))
    predicted = bnn.predict(net, test.inputs(), samples=0, likelihood="categorical", batch_size=250)  # at the mean
    found = class_scores(predicted.probs, test.y) | more
    half = found["per_input"]["accuracy"][: len(test) // 2]
    return found | {"accuracy_first_half": float(half.mean())}


@functools.lru_cache(maxsize=1)
def loaded(name: str) -> tuple[nn.Module, Any]:
    return trained(name), NETS[name].data()


def names(name: str, plain: nn.Module) -> list[str]:
    """The layers to convert."""
    fixed = NETS[name].fixed
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return [layer for layer, module in plain.named_modules() if isinstance(module, kinds) and layer not in fixed]


def converted(plain: nn.Module, layers: list[str], fraction: float, start: str, x: Tensor) -> nn.Module:
    """A converted copy, with a diagonal q(U) and everything else at its default."""
    net, kernel = copy.deepcopy(plain), KERNELS.get(start, "auto")
    if start == "whole":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bnn.bayesianize_(net, "inducing", budget=fraction, activations=x)
        return net.eval()
    ranks = {name: rank_within(plain.get_submodule(name), fraction, kernel) for name in layers}
    inference: dict[Any, Any] = {name: {"inference": "inducing", "kernel": kernel} for name in layers}
    options: dict[str, Any] = {}
    if start == "budget":
        options["budget"] = sum(cost(plain.get_submodule(name), rank, kernel) for name, rank in ranks.items())
    else:
        inference = {
            name: one | {"inducing_rows": ranks[name], "inducing_cols": ranks[name]} for name, one in inference.items()
        }
    if start in WEIGHTED:
        weigh_(net, ranks, kernel, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how little is kept is what is measured here
        bnn.bayesianize_(net, inference, activations=x if start in SEQUENTIAL else None, **options)
    return net.eval()


def cost(layer: Any, rank: int, kernel: str) -> int:
    """Parameters of an inducing layer with a diagonal q(U) of rank x rank."""
    rows, cols = matrix_shape(layer.weight.shape, layer.bias is not None, settled_kernel(kernel, layer.weight.shape))
    return rank * (rows + cols) + 2 * rank**2 + 2 * rank + 1


def rank_within(layer: Any, fraction: float, kernel: str) -> int:
    """The largest rank within a fraction of the layer's parameters, at least 1."""
    limit = fraction * sum(parameter.numel() for parameter in layer.parameters())
    rank = 1
    while cost(layer, rank + 1, kernel) <= limit:
        rank += 1
    return rank


@torch.no_grad()
def weigh_(net: nn.Module, ranks: dict[str, int], kernel: str, x: Tensor) -> None:
    """Replaces weights, in place, by those of limited rank whose outputs on `x` are closest, layer by layer alone."""
    sums = {name: Sums(net.get_submodule(name), plain_weights(net.get_submodule(name))) for name in ranks}
    hooks = [
        net.get_submodule(name).register_forward_hook(lambda _, inputs, y, one=one: one.add(inputs[0], y))
        for name, one in sums.items()
    ]
    for part in x.split(64):
        net(part)
    for hook in hooks:
        hook.remove()
    for name, rank in ranks.items():
        layer: Any = net.get_submodule(name)
        weight, bias = layer.weight.double(), None if layer.bias is None else layer.bias.double()
        own = settled_kernel(kernel, weight.shape)
        found = low_rank(weight, bias, own_moments(weight, bias, sums[name].moments().S), rank, own)
        weight, bias = from_matrix(found.W, layer.weight.shape, bias is not None, own)
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def share(plain: nn.Module, net: nn.Module) -> float:
    """Parameters of the converted layers, as a fraction of what they had."""
    inducing = [name for name, module in net.named_modules() if isinstance(module, bnn.nn.base.BayesianLayer)]
    return sum(count(net.get_submodule(n)) for n in inducing) / sum(count(plain.get_submodule(n)) for n in inducing)
