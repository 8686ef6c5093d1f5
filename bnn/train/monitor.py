"""How good a network is on held-out data, after every epoch: posterior predictive NLL, accuracy and ECE, or RMSE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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


class Monitor:
    """Held-out data, and how to score a network on it.

    Args:
        data: as for `bnn.fit`.
        likelihood: that of training.
        samples: draws per prediction.
    """

    def __init__(self, data: Any, likelihood: Any, samples: int) -> None:
        self._batches = _batches(data)
        self.likelihood, self.samples = likelihood, samples

    def score(self, network: nn.Module, device: torch.device, seed: int) -> dict[str, float]:
        """NLL of the posterior predictive distribution per datum, and what else the likelihood allows.

            nll = -1/N sum_i log 1/K sum_k p(y_i | x_i, W_k)

        The draws depend on `seed` alone. The network is left in the mode it was in.
        """
        scores = Scores(self.likelihood)
        with torch.no_grad(), evaluating(network):
            for x, y in self._batches():
                generator = torch.Generator().manual_seed(seed)  # the same draws for every batch
                outputs = draws(network, to_device(x, device), scoring_samples(network, self.samples), generator)
                scores.add(outputs, to_device(y, device))
        if not scores.count:
            raise ValueError("the validation data are empty")
        return scores.summary()


class Scores:
    """Scores of held-out data as sums, so that batches and processes add up to what all data at once would give.

    Args:
        likelihood: that of training.
    """

    def __init__(self, likelihood: Any) -> None:
        self.likelihood = likelihood
        self.tally, self.nll, self.count = Tally(), 0.0, 0

    def add(self, outputs: Tensor, y: Any) -> None:
        """Adds the K outputs (K, N, ...) for targets y."""
        y = fitting_targets(y, outputs[0], self.likelihood) if isinstance(y, Tensor) else y
        nll = predictive_nll(self.likelihood, outputs, y)
        self.nll, self.count = self.nll + float(nll.sum()), self.count + len(nll)
        found = likelihoods.about(self.likelihood)
        if found.task is not None and isinstance(y, Tensor):
            self.tally.add_points(found, torch.stack([found.point(output) for output in outputs]).mean(0), y)

    def values(self) -> Tensor:
        """All sums as one tensor, which adds up over processes."""
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


def _batches(data: Any) -> Any:
    """A function that gives the batches of held-out data, in order."""
    if isinstance(data, Data):
        data = data.validation if data.validation is not None else data.test
        if data is None:
            raise ValueError("the validation data have neither a validation nor a test part")
    found = taken(data)
    if isinstance(found, Part):
        with_targets(found)
    return lambda: batches_in_order(found, BATCH)
