"""How good a network is on held-out data, after every epoch: posterior predictive NLL, accuracy and ECE, or RMSE."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order, taken, to_device, with_targets
from bnn.ensemble import Ensemble
from bnn.likelihoods.base import per_datum
from bnn.nn.base import BayesianLayer
from bnn.prediction import draws
from bnn.train.checks import fitting_targets
from bnn.train.tally import Tally

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
        modes = {module: module.training for module in network.modules()}
        network.eval()
        total, count, tally = 0.0, 0, Tally()
        try:
            with torch.no_grad():
                for x, y in self._batches():
                    generator = torch.Generator().manual_seed(seed)  # the same draws for every batch
                    outputs = draws(network, to_device(x, device), _samples(network, self.samples), generator)
                    y = to_device(y, device)
                    y = fitting_targets(y, outputs[0], self.likelihood) if isinstance(y, Tensor) else y
                    nll = self._nll(outputs, y)
                    total, count = total + float(nll.double().sum()), count + len(nll)
                    tally.add_outputs(self.likelihood, self._mean_output(outputs, y))
        finally:
            for module, mode in modes.items():
                module.training = mode
        if not count:
            raise ValueError("the validation data are empty")
        quality = {name: value for name, value in tally.summary().items() if name in ("accuracy", "ece", "rmse")}
        return {"nll": total / count, **quality}

    def _nll(self, outputs: Tensor, y: Any) -> Tensor:
        """(N,) or, for a likelihood that gives a mean only, (1,)."""
        each = torch.stack([torch.atleast_1d(per_datum(self.likelihood(output, y))) for output in outputs])
        return math.log(len(each)) - (-each.double()).logsumexp(0)

    def _mean_output(self, outputs: Tensor, y: Any) -> list[tuple[Any, Any]]:
        """One output that stands for the mean prediction."""
        if isinstance(self.likelihood, likelihoods.Categorical):
            probs = outputs.float().softmax(2).mean(0)
            return [(probs.clamp(min=torch.finfo(probs.dtype).tiny).log(), y)]
        if isinstance(self.likelihood, likelihoods.Gaussian | likelihoods.HeteroscedasticGaussian):
            return [(outputs.mean(0), y)]
        return []


def is_bayesian(network: nn.Module) -> bool:
    """Whether draws of this network differ."""
    return isinstance(network, Ensemble) or any(isinstance(m, BayesianLayer) for m in network.modules())


def _samples(network: nn.Module, samples: int) -> int | None:
    """0 runs a plain network as it is; an ensemble of plain networks shows each member once."""
    plain = not any(isinstance(m, BayesianLayer) for m in network.modules())
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
