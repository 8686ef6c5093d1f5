"""Pruning: the entries of a posterior's parameters that matter least become exact zeros, for good."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_choice
from bnn._common.text import listed
from bnn._conversion.input_scale import input_rms
from bnn._engine.inputs import check_network
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.functional.pruning import smallest
from bnn.nn.base import PAIRINGS, BayesianLayer
from bnn.nn.pruning import Prunable, mask_of, pruned_entries, set_mask_
from bnn.parameters import check_keep, number_kept, prunable_count

CRITERIA = ["paper", "output"]
Scores = dict[BayesianLayer, list[Prunable]]


def prune_(network: nn.Module, keep: float = 0.5, by: str = "paper", activations: Any = None) -> None:
    """Sets the parameters that matter least, in place, to zeros that stay: `bnn.parameter_count` counts the rest.

    - Inducing layers: the smallest entries of Z_r and Z_c. A Z with zeros is a Z like any other: draws and KL are
      exact, and the prior of the weights is what it was.
    - `ffg` layers: the weights with the smallest |mean| / sd become 0 without noise; they are no variables any more and
      have no KL. (The paper's text says "mean-to-variance ratio"; its appendix, and Graves 2011, whom it cites, use
      |mean| / sd: it has no units, and says how likely 0 is.) Biases stay. An odd number of parameters leaves one
      weight N(0, sd^2).

    One threshold for all layers of a family, as the counts of the paper's table have it. What is gone stays gone,
    whatever trains the network then; train it on for a few epochs (`bnn.fit`, with a new optimiser). The zeros are in
    boolean buffers `_mask_<parameter>` of the layers, so state dicts, copies, files and changes of dtype keep them.

    Args:
        network: converted; some of its layers must be of a family that can be pruned.
        keep: the fraction of all prunable parameters (of those there were before any pruning) that is kept.
        by: "paper", as above; "output": by how much of the layer's output, at the posterior mean, is lost without the
            entry: |mean| rms(x) of a weight, and for Z what follows from W = sigma Z_r^T L_r^-T u L_c^-1 Z_c.
        activations: for "output": unlabelled inputs, as for `bnn.bayesianize_`; at most 1,000 of them are used.

    Raises:
        ValueError: nothing can be pruned, less is left already than `keep` asks for, scores are NaN, or `activations`
            and `by` do not go together. An error leaves the network as it was.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=16, inducing_cols=16)
    >>> before = bnn.parameter_count(net)
    >>> bnn.prune_(net, keep=0.5)
    >>> before, bnn.parameter_count(net), bool((net[0].z_row == 0).any())
    (6402, 3746, True)
    """
    check_network(network)
    check_keep(keep)
    check_choice("by", by, CRITERIA)
    if (activations is None) != (by == "paper"):
        raise ValueError(f"by={by!r} {'needs' if by == 'output' else 'takes no'} activations: inputs of the network")
    layers = prunable_layers(network)
    gone = _numbers_to_go(network, layers, keep)
    with torch.no_grad():
        inputs = {} if activations is None else input_rms(network, layers, activations)
        scores = {layer: layer.prune_scores(inputs.get(layer)) for layer in layers.values()}
        _check(layers, scores)
        chosen = [(family, own, _smallest(_of(family, scores), own)) for family, own in gone.items()]
    warn_of_temperature(network, "it is pruned now")
    forget_temperature_(network)
    for family, _, masks in chosen:
        for layer, pruned in zip(_of(family, scores), masks, strict=True):
            for name, mask in pruned.items():
                set_mask_(layer, name, ~mask)


def prunable_layers(network: nn.Module) -> dict[str, BayesianLayer]:
    """The layers of `network` that can be pruned, by name; ValueError if there are none."""
    found = {name: m for name, m in network.named_modules() if isinstance(m, BayesianLayer) and prunable_count(m)}
    if not found:
        known = sorted({one.family for one in PAIRINGS.known.values() if one.prunable})
        raise ValueError(f"nothing can be pruned: no layer of this network is of a family that can be, of {known}")
    return found


def _numbers_to_go(network: nn.Module, layers: dict[str, BayesianLayer], keep: float) -> dict[str, int]:
    """How many entries of each family are zeros then, in proportion, so that the network's count is rounded once."""
    total = sum(parameter.numel() for parameter in network.parameters())
    sizes: dict[str, int] = {}
    for layer in layers.values():
        sizes[layer.family] = sizes.get(layer.family, 0) + prunable_count(layer)
    whole = sum(sizes.values())
    wanted, seen, before, found = number_kept(total, whole, keep), 0, 0, {}
    for family, size in sizes.items():
        seen += size
        until = (2 * wanted * seen + whole) // (2 * whole)  # wanted * seen / whole, rounded
        found[family], before = size - (until - before), until
        left = size - sum(pruned_entries(layer) for layer in layers.values() if layer.family == family)
        if size - found[family] > left:
            raise ValueError(
                f"keep={keep:g} asks for {size - found[family]:,} of the {size:,} prunable parameters of {family!r} "
                f"layers, but pruning has left {left:,}: what is gone does not come back; expected keep <= "
                f"{left / size:.6g}"
            )
    return found


def _check(layers: dict[str, BayesianLayer], scores: Scores) -> None:
    """ValueError where a score is no number, or there are no numbers at all."""
    meta = [name for name, layer in layers.items() if any(one.scores.is_meta for one in scores[layer])]
    if meta:
        raise ValueError(f"parameters on the meta device have no size to prune by: {listed(meta)}")
    wrong = [name for name, layer in layers.items() if any(bool(one.scores.isnan().any()) for one in scores[layer])]
    if wrong:
        raise ValueError(f"NaN among the parameters of {listed(wrong)}: nobody can say which of them matter")


def _of(family: str, scores: Scores) -> Scores:
    return {layer: own for layer, own in scores.items() if layer.family == family}


def _smallest(scores: Scores, number: int) -> list[dict[str, Tensor]]:
    """Layer by layer and name by name, True for the `number` entries of all layers that go, pruned ones first."""
    parts = [_with_pruned(layer, one) for layer, own in scores.items() for one in own]
    found = iter(smallest(parts, number))
    return [{name: mask for one in own for name, mask in _by_name(one, next(found))} for own in scores.values()]


def _with_pruned(layer: BayesianLayer, one: Prunable) -> Tensor:
    """Scores of all entries (..., names), side by side where they go together; -inf of those that are gone."""
    masks = [mask_of(layer, name) for name in one.names]
    own = [one.scores if mask is None else one.scores.masked_fill(~mask, -torch.inf) for mask in masks]
    return torch.stack(own, dim=-1)


def _by_name(one: Prunable, chosen: Tensor) -> list[tuple[str, Tensor]]:
    return [(name, chosen[..., i].contiguous()) for i, name in enumerate(one.names)]
