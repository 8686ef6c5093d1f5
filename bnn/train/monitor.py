"""How good a network is on held-out data, after every epoch: posterior predictive NLL, accuracy and ECE, or RMSE."""

from __future__ import annotations

import copy
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bnn import likelihoods
from bnn._engine.fold import Drawn
from bnn._engine.inputs import evaluating
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order, taken, to_device, with_targets
from bnn.ensemble import Ensemble
from bnn.likelihoods.base import fitting_targets, predictive_nll
from bnn.prediction import draws
from bnn.train.step import Tally

BATCH = 500
# Validation inputs. The sd of n residuals is off by a factor of 1 +- 1 / sqrt(2 n): 13 % for 30, less than what the
# residuals of training data miss (diabetes, 360 training inputs: 20 %).
LEAST = 30
MOST_NUMBERS = 2**26  # of draws' outputs that wait for the noise to be settled; what comes after has that of these


class Monitor:
    """Held-out data, and how to score a network on it.

    Args:
        data: as for `bnn.fit`.
        likelihood: that of training.
        samples: draws per prediction.
        settles: whether the noise of real targets will be settled on these data in the end.
    """

    def __init__(self, data: Any, likelihood: Any, samples: int, settles: bool = False) -> None:
        self._batches = _batches(data)
        self.likelihood, self.samples, self.settles = likelihood, samples, settles

    def score(self, network: nn.Module, device: torch.device, seed: int) -> dict[str, float]:
        """NLL of the posterior predictive distribution per datum, and what else the likelihood allows.

            nll = -1/N sum_i log 1/K sum_k p(y_i | x_i, W_k)

        The draws depend on `seed` alone. The network is left in the mode it was in, the likelihood as it was.
        """
        scores = Scores(self.likelihood, self.settles)
        with torch.no_grad(), evaluating(network):
            for x, y in self._batches():
                generator = torch.Generator().manual_seed(seed)  # the same draws for every batch
                outputs = draws(network, to_device(x, device), scoring_samples(network, self.samples), generator)
                scores.add(outputs, to_device(y, device))
        values = scores.values()
        if not scores.count:
            raise ValueError("the validation data are empty")
        return scores.summary(values)


class Scores:
    """Scores of held-out data as sums, so that batches and processes add up to what all data at once would give.

    Args:
        likelihood: that of training.
        settles: score with the noise settled on these very data, as in the end but for its tails: a network whose noise
            is behind, or that was fitted too well, is no worse for it. The likelihood itself stays as it is.
    """

    def __init__(self, likelihood: Any, settles: bool = False) -> None:
        self.likelihood = copy.deepcopy(likelihood) if settles else likelihood
        self.tally, self.nll, self.count = Tally(), 0.0, 0
        self._waiting: list[tuple[Tensor, Any]] | None = [] if settles else None

    def add(self, outputs: Tensor, y: Any) -> None:
        """Adds the K outputs (K, N, ...) for targets y."""
        y = fitting_targets(y, outputs[0], self.likelihood) if isinstance(y, Tensor) else y
        if self._waiting is None:
            self._count(outputs, y)
            return
        self._waiting.append((outputs, y))
        if sum(one.numel() for one, _ in self._waiting) > MOST_NUMBERS:
            self._settle()

    def _settle(self) -> None:
        """Settles the noise on what is waiting, and counts it."""
        waiting, self._waiting = self._waiting or [], None
        if waiting:
            outputs, targets = zip(*waiting, strict=True)
            self.likelihood.start_(torch.cat(outputs, 1), torch.cat(targets))
        for pair in waiting:
            self._count(*pair)

    def _count(self, outputs: Tensor, y: Any) -> None:
        nll = predictive_nll(self.likelihood, outputs, y).detach()
        self.nll, self.count = self.nll + float(nll.sum()), self.count + len(nll)
        found = likelihoods.about(self.likelihood)
        if found.task is not None and isinstance(y, Tensor):
            self.tally.add_points(found, torch.stack([found.point(output) for output in outputs]).mean(0), y)

    def values(self) -> Tensor:
        """All sums as one tensor, which adds up over processes."""
        self._settle()
        return torch.cat([torch.tensor([self.nll, self.count], dtype=torch.double, device="cpu"), self.tally.values])

    def summary(self, values: Tensor | None = None) -> dict[str, float]:
        """NLL, and accuracy and ECE, or RMSE, from these sums or from `values` of several processes."""
        nll, count, *_ = values = self.values() if values is None else values
        tally = Tally()
        tally.values = values[2:]
        return {"nll": float(nll / count), **tally.quality()}


def is_bayesian(network: nn.Module) -> bool:
    """Whether draws of this network differ."""
    return isinstance(network, Ensemble) or any(isinstance(m, Drawn) for m in network.modules())


def scoring_samples(network: nn.Module, samples: int | None) -> int | None:
    """0 runs a plain network as it is; an ensemble of plain networks shows each member once."""
    plain = not any(isinstance(m, Drawn) for m in network.modules())
    return (None if isinstance(network, Ensemble) else 0) if plain else samples


def held_out_of(data: Any, validation: Any) -> Any:
    """The validation data of a training: those given, or those of a `Data`; None where there are none."""
    if isinstance(validation, Data):
        found = validation.validation if validation.validation is not None else validation.test
        if found is None:
            raise ValueError("the validation data have neither a validation nor a test part")
        return found
    return data.validation if validation is None and isinstance(data, Data) else validation


def enough(held_out: Any, least: int = LEAST) -> bool:
    """Whether there are validation data, and enough of them to settle a noise on."""
    found = None if held_out is None else taken(held_out, "validation")
    kept = found.dataset if isinstance(found, DataLoader) else found
    return isinstance(kept, Sized) and len(kept) >= least


def known(held_out: Any, targets: int = 1) -> list[int]:
    """How many values of each of so many targets are known; of inputs that are not at hand as tensors: of inputs.

    >>> known(Part(torch.zeros(3, 1), torch.tensor([[1.0, torch.nan], [2.0, 5.0], [0.0, torch.nan]])), 2)
    [3, 1]
    """
    found = taken(held_out, "validation")
    if isinstance(found, Part) and found.y is not None and targets > 1 and found.y.shape[1:2] == (targets,):
        return [int((~one.isnan()).flatten(1).any(1).sum()) for one in found.y.split(1, 1)]
    kept = found.dataset if isinstance(found, DataLoader) else found
    return [len(kept) if isinstance(kept, Sized) else 0] * targets


def _batches(data: Any) -> Any:
    """A function that gives the batches of held-out data, in order."""
    found = taken(held_out_of(None, data))
    if isinstance(found, Part):
        with_targets(found)
    return lambda: batches_in_order(found, BATCH)
