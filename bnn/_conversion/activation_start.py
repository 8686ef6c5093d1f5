"""Low-rank weights that keep what a trained network computes, from some of its inputs: `bayesianize_(activations=)`.

Layers are fitted in the order in which they run. Each sees the inputs it will get, from the network as converted so
far, and is fitted to the outputs that it gave in the original network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn._common.progress import progress_of
from bnn._common.text import listed
from bnn._conversion.activation_inputs import INPUTS, first_inputs
from bnn._conversion.batchnorm_choice import better_statistics
from bnn._conversion.layer_fit import Fit, Wanted, fit, joined, truncated
from bnn._conversion.layer_rows import Sums
from bnn._conversion.passage import LARGEST, Change, Passage, Shown
from bnn._engine.members import Mixture
from bnn._engine.noise import unwrapped
from bnn.functional.kernels import from_matrix
from bnn.functional.low_rank import LowRank, energy_by_rank
from bnn.nn.base import Weights


class Fitted(NamedTuple):
    """What came out."""

    found: dict[nn.Module, LowRank]  # by layer
    statistics: list[tuple[Tensor, Tensor]]  # buffers of BatchNorm and better values for them
    never: list[str]  # names of layers that did not run
    large: list[str]  # names of layers with too many inputs for second moments
    outputs: list[float]  # what every network keeps of the variance of its own outputs, where they are tensors

    def apply_statistics_(self) -> None:
        """Writes the better statistics of BatchNorm, in place."""
        with torch.no_grad():
            for buffer, value in self.statistics:
                buffer.copy_(value)

    def doubts(self) -> list[str]:
        """What users should know."""
        plain = "their weights are truncated as without activations="
        said = [f"layers that did not run on the inputs of activations=: {listed(self.never)}; {plain}"]
        said += [f"layers with over {LARGEST} inputs, too many for second moments: {listed(self.large)}; {plain}"]
        return [one for one, names in zip(said, (self.never, self.large), strict=True) if names]


def inputs_for(network: nn.Module, data: Any) -> list[Any]:
    """The batches of `data` that layers are fitted to, on the network's device; read once, as data may be a stream."""
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    batches = list(first_inputs(data, INPUTS, device))
    if not batches:
        raise ValueError("activations= holds no inputs, so there is nothing to fit the layers to")
    return batches


def fit_layers(network: nn.Module, wanted: list[Wanted], batches: list[Any]) -> Fitted:
    """Fits layers to what they compute on `batches`, and leaves the network as it was.

    Where BatchNorm takes nothing but the output of a layer without a bias, its running mean serves as one.
    Memory: the second moments of one layer at a time, P^2 float64 per group for rows of P entries and about four times
    that to solve; and the activations of all inputs at one point of the network, twice, up to 2 GB (`passage.BYTES`).
    """
    result = Fitted({}, [], [], [], [])
    by_layer = {one.layer: one for one in wanted}

    def change(layer: nn.Module, shown: Shown) -> Weights:
        one = by_layer[layer]
        if shown.halves is None:
            result.large.append(one.name)
            found, shift = Fit(truncated(one), None)
        else:
            found, shift = fit(one, shown.halves, shown.norm is not None)
        result.found[layer] = found
        weight, bias = from_matrix(found.W, one.weights.weight.shape, one.weights.bias is not None, one.kernel)
        bias = shift if bias is None else bias
        return Weights(weight.to(one.weights.weight), None if bias is None else bias.to(one.weights.weight))

    def end(passage: Passage, batches: list[Any], outputs: list[tuple[Any, Any]]) -> None:
        result.statistics.extend(_statistics(passage, batches, outputs))
        if all(isinstance(one, Tensor) and one.is_floating_point() for pair in outputs for one in pair):
            result.outputs.append(_variance_kept(outputs))

    _show(network, by_layer, batches, change, "fitting", end)
    result.never.extend(one.name for one in wanted if one.layer not in result.found)
    return result


def _variance_kept(outputs: list[tuple[Tensor, Tensor]]) -> float:
    """1 - |y - y'|^2 / |y - mean y|^2 for outputs y (N, ...) of the original network and y' of the changed one."""
    original, changed = (torch.cat([pair[i].double().flatten(1) for pair in outputs]) for i in (0, 1))
    spread = float((original - original.mean(0)).square().sum())
    return 1 - float((original - changed).square().sum()) / spread if spread > 0 else 1.0


class Measured(NamedTuple):
    """What the original network tells about its layers."""

    kept: dict[nn.Module, list[float]]  # the fraction of the outputs' variance that rank 1, 2, ... keeps, by layer
    last: set[nn.Module]  # the layer of every network that runs last


def measure_layers(network: nn.Module, wanted: list[Wanted], batches: list[Any]) -> Measured:
    """How much of its outputs' variance on `batches` every rank of a layer keeps; layers that do not run are left out.

    All layers keep their weights. A constant output, which a bias or BatchNorm can give, takes no rank here. What few
    rows do not show counts by the weights alone: S + P / (4 rows) mean(diag S) I, for rows of P entries.
    """
    measured = Measured({}, set())
    by_layer = {one.layer: one for one in wanted}

    def change(layer: nn.Module, shown: Shown) -> Weights:
        one = by_layer[layer]
        if shown.halves is not None:
            gains = energy_by_rank(*one.weights, _variances(joined(one, shown.halves)), one.kernel)
            energy = gains.clamp(min=0).cumsum(0)
            measured.kept[layer] = (energy / energy[-1]).tolist() if energy[-1] > 0 else [1.0] * len(energy)
        return one.weights

    def end(passage: Passage, batches: list[Any], outputs: list[tuple[Any, Any]]) -> None:
        measured.last.update([] if passage.last is None else [passage.last])

    _show(network, by_layer, batches, change, "measuring", end)
    return measured


def _variances(sums: Sums) -> Tensor:
    """E[x x^T] - E[x] E[x]^T (groups, P, P), with a ridge that stands for what few rows do not show."""
    x, P = sums.means()[0], sums.S.shape[-1]
    S = sums.moments().S - x[:, :, None] * x[:, None]
    ridge = P / (4 * max(sums.rows, 1)) * S.diagonal(dim1=-2, dim2=-1).mean()
    return S + ridge * torch.eye(P, dtype=S.dtype, device=S.device)


def statistics_names(network: nn.Module) -> list[str]:
    """The names of the buffers that `Fitted.apply_statistics_` may write."""
    norms = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [f"{name}.{part}" if name else part for name, norm in norms for part, _ in norm.named_buffers(recurse=False)]


# ---- the network -----------------------------------------------------------------------------------------------------


End = Callable[[Passage, list[Any], list[tuple[Any, Any]]], None]


def _show(
    network: nn.Module, wanted: dict[nn.Module, Wanted], batches: list[Any], change: Change, what: str, end: End
) -> None:
    """Shows the layers of a network, or of every member of an ensemble, on `batches`; with a bar on terminals.

    Args:
        end: called with each passage, before it is over, with the batches it used and its outputs.
    """
    roots = list(network.members) if isinstance(network, Mixture) else [unwrapped(network)]
    with _evaluating(network), progress_of(None, len(wanted), f"{what} layers", "layers", transient=True) as advance:

        def advancing(layer: nn.Module, shown: Shown) -> Weights:
            weights = change(layer, shown)
            advance(f"{what} {wanted[layer].name}", 1)
            return weights

        for root in roots:
            inside = set(root.modules())
            own = {layer: one.weights for layer, one in wanted.items() if layer in inside}
            if own:
                with Passage(root, own, advancing) as passage:
                    end(passage, *passage.run(iter(batches)))


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Everything in evaluation mode while the block lasts."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _statistics(passage: Passage, batches: list[Any], outputs: list[tuple[Any, Any]]) -> list[tuple[Tensor, Tensor]]:
    """Better statistics of BatchNorm, with the biases that layers before them cannot have."""
    found = {id(buffer): (buffer, value) for buffer, value in better_statistics(passage.root, batches, outputs)}
    for layer, mean in passage.norms.items():
        bias = passage.changed[layer].bias if layer in passage.changed else None
        if bias is not None and passage.weights[layer].bias is None:
            found[id(mean)] = (mean, found.get(id(mean), (mean, mean))[1] - bias)
    return list(found.values())
