"""Which of several members each draw shows, of Ensemble-U and of deep ensembles: all equally often.

Several deep ensembles inside one network are dealt together: what is counted is combinations of their members.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bnn._engine.draw import Draw
from bnn._engine.inputs import modules_of

SAMPLES = 20  # draws of a prediction, by default


class Drawing(nn.Module):
    """What the engine asks of a Bayesian layer."""

    repeats: bool = False  # runs more than once in a forward, so that all its calls must see one W
    followed: bool = False  # was taken for the last layer of a network, and something came after it
    runs: bool = True  # acts on inputs, so that it is missed where it takes part in no forward

    def member_count(self) -> int:
        """How many members Ensemble-U has in this layer; 0: it is none."""
        return 0

    def is_point(self) -> bool:
        """Whether nothing is drawn here: the same output in all draws."""
        return False


class Mixture(nn.Module):
    """Several networks as one: every draw shows one of its `members`."""

    members: nn.ModuleList

    def shown(self, draw: Draw, given: Tensor | None = None) -> Tensor:
        """The members (K,) that the K draws of `draw` show: `given` if nobody has asked before, else as it was."""
        size = len(self.members)
        return draw.once(self, "member", lambda d: d.integers(self, size) if given is None else given, whole=True)


# ---- Ensemble-U ------------------------------------------------------------------------------------------------------


def even_members(network: nn.Module, samples: int, generator: torch.Generator | None = None) -> list[int] | None:
    """The ensemble member each of `samples` draws shows: every member equally often, in random order.

    20 draws of 5 members are 4 of each; with a remainder, which members come once more is random. None for a
    network without Ensemble-U.
    """
    size = member_count(network)
    return _dealt(size, samples, generator) if size else None


def _dealt(size: int, samples: int, generator: torch.Generator | None) -> list[int]:
    """`samples` numbers below `size` in random order, each equally often."""
    rounds, device = -(-samples // size), "cpu" if generator is None else generator.device
    picked = torch.cat([torch.randperm(size, generator=generator, device=device) for _ in range(rounds)])
    return picked[:samples].tolist()


def member_count(network: nn.Module) -> int:
    """How many members Ensemble-U has in `network`; 0 for a network without it."""
    return max((m.member_count() for m in modules_of(network) if isinstance(m, Drawing)), default=0)


def shown_members(network: nn.Module, draw: Draw) -> list[int]:
    """The members of Ensemble-U that the K draws of `draw` show in a forward of `network`; zeros without Ensemble-U."""
    size = member_count(network)
    layer = next((m for m in network.modules() if isinstance(m, Drawing) and size and m.member_count() == size), None)
    return [0] * draw.count if layer is None else draw.member(layer, size).tolist()


# ---- deep ensembles --------------------------------------------------------------------------------------------------


def mixtures(network: nn.Module) -> list[Mixture]:
    """The deep ensembles in `network`, itself included."""
    return [module for module in modules_of(network) if isinstance(module, Mixture)]


def combinations(network: nn.Module) -> int:
    """How many networks `network` is: its members if it is an ensemble, combinations of them if it has several."""
    return math.prod(len(mixture.members) for mixture in mixtures(network))


def default_samples(network: nn.Module) -> int:
    """20, rounded up so that every member counts the same; without Bayesian layers, every member once."""
    networks = combinations(network)
    if not any(isinstance(module, Drawing) for module in network.modules()):
        return networks
    each = networks * max(1, member_count(network))
    return -(-SAMPLES // each) * each


def draws_differ(network: nn.Module) -> bool:
    """Whether there is anything to draw: a Bayesian layer, or a member of a deep ensemble."""
    return any(isinstance(module, Drawing | Mixture) for module in modules_of(network))


def last_layers(network: nn.Module) -> list[Drawing]:
    """The one layer of `network`, or of every member of an ensemble, that draws, if it may be the last to run; else [].

    That is where no later module has parameters, and no module is in train mode: dropout is different in every draw.
    """
    found: list[Drawing] = []
    for one in network.members if isinstance(network, Mixture) else [network]:
        last: nn.Module | None = None
        count = 0
        for module in modules_of(one):
            if module.training or isinstance(module, Mixture):
                return []
            count += isinstance(module, Drawing) and not module.is_point()
            last = module if module._parameters else last
        if count != 1 or not isinstance(last, Drawing) or last.is_point() or last.repeats or last.followed:
            return []
        found.append(last)
    return found


def evenly(count: int, size: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` numbers below `size` in rising order, each equally often; which come once more is random.

    >>> evenly(6, 3)
    tensor([0, 0, 1, 1, 2, 2])
    """
    if size == 1:
        return torch.zeros(count, dtype=torch.int64, device="cpu")
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
    numbers = shown.tolist()
    starts = [i for i, number in enumerate(numbers) if i == 0 or number != numbers[i - 1]]
    return list(zip(starts, [*starts[1:], len(numbers)], strict=True))


def deal_(draw: Draw, shown: Tensor) -> None:
    """Tells `draw`, in place, the combination of members (K,) that each of its draws shows."""
    assert draw.call.root is not None
    for mixture in reversed(mixtures(draw.call.root)):  # neighbours differ in what is innermost
        size = len(mixture.members)
        mixture.shown(draw, shown % size)
        shown = shown // size


def inducing_members(
    network: nn.Module, parts: list[tuple[int, int]], generator: torch.Generator | None = None
) -> list[int] | None:
    """`even_members` within each block of draws, so that pairs of network and Ensemble-U member are even."""
    size = member_count(network)
    if not size:
        return None
    return [member for start, stop in parts for member in _dealt(size, stop - start, generator)]


def shares(network: nn.Module) -> dict[int, float]:
    """By id, the fraction of combinations that a module is a part of; modules outside all ensembles are left out."""
    found: dict[int, float] = {}
    for mixture in mixtures(network):
        counts: dict[int, int] = {}
        for member in mixture.members:
            for module in member.modules():
                counts[id(module)] = counts.get(id(module), 0) + 1
        for key, count in counts.items():
            found[key] = found.get(key, 1.0) * count / len(mixture.members)
    return found
