"""Single-pass prediction, `bnn.predict(samples="logits")`, where only the last layer is Bayesian.

The network runs once, at its posterior mean. The outputs of the last layer at what it is given there are Gaussian, in
closed form; what they predict follows without draws of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.text import listed
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import is_same, mark_of, one_by_one
from bnn._engine.inputs import batches_of, number_of_inputs
from bnn._engine.members import Drawing, Mixture, mixtures
from bnn._engine.noise import unwrapped
from bnn.likelihoods.predictions import mixture
from bnn.nn.families.inducing import InducingBase
from bnn.nn.families.output_gaussian import OutputGaussian, why_none

NAME = "logits"  # what `samples=` calls it
DRAWS = 200  # of outputs, where a likelihood needs some: they cost a softmax each, and no pass
BYTES = 2**24  # of draws held at a time, of at least one input

Prediction = likelihoods.ClassPrediction | likelihoods.RegressionPrediction
INSTEAD = "samples=20 draws from any posterior"


def predict_outputs(
    network: nn.Module,
    x: Any,
    likelihood: Any,
    meaning: Callable[[Tensor], Any],
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Any:
    """The prediction at inputs x; of an `Ensemble` the mixture of its members.

    Args:
        likelihood: whose `from_gaussian`, if it is one that needs no draws, makes the prediction.
        meaning: makes it from draws of outputs (K, N, ...) otherwise.
        generator: of these draws; all inputs share their normals, so that neither `batch_size` nor other inputs change
            what is predicted for one.
    """
    heads = _heads(network)
    noises: list[Tensor] = []  # (K, width) of every member: made once, when the first batch tells how wide
    parts: list[Prediction] = []
    for batch in batches_of(x, batch_size):
        inputs = [input_of(member, head, batch) for member, head in heads]
        for some in _chunks([head for _, head in heads], inputs):
            closed = [likelihoods.about(likelihood).from_gaussian(one.mean(), one.variance()) for one in some]
            if closed[0] is not None:
                parts.append(mixture(closed))
                continue
            if not noises:
                each = -(-DRAWS // len(some))
                noises = [_normals(each, one.noise_width(), one.x.device, generator) for one in some]
            parts.append(meaning(torch.cat([one.draws(noise) for one, noise in zip(some, noises, strict=True)])))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _chunks(heads: list[InducingBase], inputs: list[Tensor]) -> Iterator[list[OutputGaussian]]:
    """The Gaussians of all members, for so many inputs at a time that draws of them stay small."""
    for parts in zip(
        *(given.split(_size(head, given)) for head, given in zip(heads, inputs, strict=True)), strict=True
    ):
        yield [OutputGaussian(head, part) for head, part in zip(heads, parts, strict=True)]


def _size(head: InducingBase, given: Tensor) -> int:
    """How many inputs to take at a time."""
    rows = head.rows(given.shape)
    assert rows is not None
    if not rows.batched:
        return max(1, len(given))
    return max(1, BYTES // max(1, 4 * DRAWS * rows.number * head.d_out))


def _normals(count: int, width: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Standard normals (count, width), the same on every device."""
    source = "cpu" if generator is None else generator.device
    return torch.randn(count, width, generator=generator, device=source).to(device)


def _joined(parts: list[Any]) -> Any:
    """The predictions of several inputs as one."""
    first = parts[0]
    if not isinstance(first, Prediction):
        raise TypeError(
            f'samples="{NAME}" joins predictions of some inputs at a time, and cannot join a {type(first).__name__}: '
            f"let `predictive` return a ClassPrediction or RegressionPrediction; {INSTEAD}"
        )
    whole = type(first)(*(torch.cat(column) for column in zip(*parts, strict=True)))
    if first.samples is not None:
        whole.samples = torch.cat([part.samples for part in parts], dim=1)
    return whole


# ---- one network -----------------------------------------------------------------------------------------------------


def _heads(network: nn.Module) -> list[tuple[nn.Module, InducingBase]]:
    """Every member, or the network itself, with its one Bayesian layer."""
    network = unwrapped(network)
    members = list(network.members) if isinstance(network, Mixture) else [network]
    return [(member, _head(member)) for member in members]


def _head(network: nn.Module) -> InducingBase:
    """The one Bayesian layer of a network. Raises ValueError unless there is one, with a Gaussian in closed form."""
    needs = f'samples="{NAME}" needs a network whose last layer is its one Bayesian layer'
    after = f"bnn.laplace_ makes such networks from plain ones; {INSTEAD}"
    if mixtures(network):
        raise ValueError(f"{needs}; this one has an ensemble inside: {INSTEAD}")
    layers = {name or "the network": m for name, m in network.named_modules() if _draws(m)}
    if len(layers) != 1:
        shown = f"{len(layers)}: {listed(layers)}" if layers else "none"
        raise ValueError(f"{needs}; this one has {shown}. {after}")
    ((name, layer),) = layers.items()
    reason = why_none(layer)
    if reason:
        raise ValueError(f"{needs}, with a Gaussian over outputs in closed form; {name} has none: {reason}. {after}")
    assert isinstance(layer, InducingBase)
    return layer


class _Run(NamedTuple):
    """One call of the layer."""

    input: Tensor
    output: Tensor
    mark: Any  # tells whether it changes in place


def input_of(network: nn.Module, layer: InducingBase, x: Any) -> Tensor:
    """What the layer is given where the network runs on x. Raises ValueError unless its output is the network's."""
    runs: list[_Run] = []

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        runs.append(_Run(args[0], output, mark_of(output)))

    handle = layer.register_forward_hook(note, prepend=True)
    try:
        draw = Draw(Call(network, at_mean=True), inputs=number_of_inputs(x))
        output = one_by_one(network, [x], [draw])[0]
    finally:
        handle.remove()
    kind = type(layer).__name__
    if len(runs) != 1:
        raise ValueError(
            f'samples="{NAME}" needs the Bayesian layer to run once; this {kind} ran {len(runs)} times: {INSTEAD}'
        )
    run = runs[0]
    if not is_same(output, run.output, run.mark):
        got = f"of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(
            f'samples="{NAME}" needs the output of the network to be that of its Bayesian layer, a {kind}; something '
            f"follows it, such as a softmax or a reshape: it gives {tuple(run.output.shape)}, the network {got}; "
            f"let the network end with the layer (likelihoods take logits); {INSTEAD}"
        )
    return run.input


def _draws(module: nn.Module) -> bool:
    return isinstance(module, Drawing) and not module.is_point()
