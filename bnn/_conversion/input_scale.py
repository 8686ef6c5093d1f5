"""How large the inputs of layers are: the root mean square of what every weight multiplies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.text import listed
from bnn._conversion.activation_inputs import INPUTS, copied, first_inputs, number_of
from bnn._conversion.curvature import at_mean
from bnn._engine.fold import one_by_one
from bnn._engine.inputs import device_of, evaluating
from bnn._engine.members import Mixture
from bnn.functional.linalg import at_least_float32
from bnn.nn.base import BayesianLayer, Weights


class _Squares:
    """Sums of x_j^2 over all rows x that a layer saw, in the shape of its weights.

    run(x^2; w, b) is linear in w and b: its derivatives are these sums and the number of rows, for any layer type.
    """

    def __init__(self, layer: BayesianLayer) -> None:
        like = at_least_float32(next(layer.parameters()).detach())
        self.layer = layer
        self.weight, self.bias = like.new_zeros(layer.weight_shape), like.new_zeros(layer.d_out)

    def add(self, x: Tensor) -> None:
        with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
            weights = [torch.zeros_like(part, requires_grad=True) for part in (self.weight, self.bias)]
            out = self.layer.run(x.detach().to(self.weight).square(), *weights)
            found = torch.autograd.grad(out.sum(), weights)
        self.weight += found[0]
        self.bias += found[1]

    def rms(self) -> Weights:
        rows = self.bias.max().clamp(min=1)  # as many for every output
        return Weights((self.weight / rows).sqrt(), torch.ones_like(self.bias) if self.layer.has_bias else None)


def input_rms(network: nn.Module, layers: dict[str, BayesianLayer], activations: Any) -> dict[nn.Module, Weights]:
    """The rms of what every weight of these layers multiplies, at the posterior mean, on at most 1,000 inputs.

    Args:
        layers: by name; an error names those that did not run.
        activations: inputs, as `bnn.bayesianize_` takes them.

    Raises:
        ValueError: a layer did not run, or saw NaN or inf.
    """
    members = list(network.members) if isinstance(network, Mixture) else [network]
    with torch.no_grad(), evaluating(network), _watched(list(layers.values())) as squares:
        for x in first_inputs(activations, INPUTS, device_of(network)):
            for member in members:
                one_by_one(member, [copied(x)], [at_mean(member, number_of(x))])
    silent = [name for name, layer in layers.items() if not squares[layer].bias.any()]
    if silent:
        raise ValueError(f"layers that did not run on these activations cannot be judged by them: {listed(silent)}")
    wrong = [name for name, layer in layers.items() if not bool(torch.isfinite(squares[layer].weight).all())]
    if wrong:
        raise ValueError(f"NaN, inf or numbers too large to be squared on the way into {listed(wrong)}")
    return {layer: squares[layer].rms() for layer in layers.values()}


@contextmanager
def _watched(layers: Sequence[BayesianLayer]) -> Iterator[dict[nn.Module, _Squares]]:
    """Adds up what the layers see inside the block."""
    squares: dict[nn.Module, _Squares] = {layer: _Squares(layer) for layer in layers}

    def hook(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        squares[layer].add((*args, *kwargs.values())[0])

    with ExitStack() as stack:
        for layer in (one for one in layers if one.runs):
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield squares
