"""Which member of an `Ensemble` each draw shows: all equally often, wherever in the network the ensemble is.

Several ensembles inside one network are dealt together: what is counted is combinations of their members.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bnn.ensemble import Ensemble
from bnn.nn.base import BayesianLayer
from bnn.nn.draw import Draw
from bnn.nn.members import even_members, member_count

SAMPLES = 20  # draws of a prediction, where nobody says how many


def ensembles(network: nn.Module) -> list[Ensemble]:
    """The deep ensembles in `network`, itself included."""
    return [module for module in network.modules() if isinstance(module, Ensemble)]


def combinations(network: nn.Module) -> int:
    """How many networks `network` is: its members if it is an ensemble, combinations of them if it has several."""
    return math.prod(len(ensemble.members) for ensemble in ensembles(network))


def default_samples(network: nn.Module) -> int:
    """20, rounded up so that every member counts the same; without Bayesian layers, every member once."""
    networks = combinations(network)
    if not any(isinstance(module, BayesianLayer) for module in network.modules()):
        return networks
    each = networks * max(1, member_count(network))
    return -(-SAMPLES // each) * each


def evenly(count: int, size: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` numbers below `size` in rising order, each equally often; which come once more is random.

    >>> evenly(6, 3)
    tensor([0, 0, 1, 1, 2, 2])
    """
    rounds, rest = divmod(count, size)
    device = "cpu" if generator is None else generator.device
    numbers = torch.arange(size, device="cpu").repeat(rounds)
    if rest:
        numbers = torch.cat([numbers, torch.randperm(size, generator=generator, device=device)[:rest].cpu()])
    return numbers.sort().values


def blocks(shown: Tensor) -> list[tuple[int, int]]:
    """Where equal neighbours of `shown` (K,) start and stop: draws of one network, which can run in one pass.

    >>> blocks(torch.tensor([0, 0, 2]))
    [(0, 2), (2, 3)]
    """
    stops = shown.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def deal_(draw: Draw, shown: Tensor) -> None:
    """Tells `draw`, in place, the combination of members (K,) that each of its draws shows."""
    assert draw.root is not None
    for ensemble in reversed(ensembles(draw.root)):  # neighbours differ in what is innermost
        size = len(ensemble.members)
        ensemble.shown(draw, shown % size)
        shown = shown // size


def inducing_members(
    network: nn.Module, parts: list[tuple[int, int]], generator: torch.Generator | None = None
) -> list[int] | None:
    """`even_members` within each block of draws, so that pairs of network and Ensemble-U member are even."""
    members = [even_members(network, stop - start, generator) for start, stop in parts]
    return [member for part in members if part is not None for member in part] or None


def shares(network: nn.Module) -> dict[int, float]:
    """By id, the fraction of combinations that a module is a part of; modules outside all ensembles are left out."""
    found: dict[int, float] = {}
    for ensemble in ensembles(network):
        counts: dict[int, int] = {}
        for member in ensemble.members:
            for module in member.modules():
                counts[id(module)] = counts.get(id(module), 0) + 1
        for key, count in counts.items():
            found[key] = found.get(key, 1.0) * count / len(ensemble.members)
    return found
