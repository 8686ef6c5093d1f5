"""Scores of held-out data as sums, so that batches and processes add up to what all data at once would give."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bnn import likelihoods
from bnn.likelihoods.base import per_datum
from bnn.train.tally import Tally


class Scores:
    """Sums over held-out data that add up over batches and processes."""

    def __init__(self) -> None:
        self.tally, self.nll, self.count = Tally(), 0.0, 0

    def add(self, likelihood: Any, outputs: Tensor, y: Any) -> None:
        """Adds the K outputs (K, N, ...) for targets y."""
        each = torch.stack([torch.atleast_1d(per_datum(likelihood(output, y))) for output in outputs]).double()
        self.nll += float((math.log(len(each)) - (-each).logsumexp(0)).sum())
        self.count += each.shape[1]
        if isinstance(likelihood, likelihoods.Categorical):
            probs = outputs.float().softmax(2).mean(0)
            self.tally.add_outputs(likelihood, [(probs.clamp(min=torch.finfo(probs.dtype).tiny).log(), y)])
        elif isinstance(likelihood, likelihoods.Gaussian | likelihoods.HeteroscedasticGaussian):
            self.tally.add_outputs(likelihood, [(outputs.mean(0), y)])

    def values(self) -> Tensor:
        """All sums as one tensor."""
        return torch.cat([torch.tensor([self.nll, self.count], dtype=torch.double), self.tally.values])

    @staticmethod
    def summary(values: Tensor) -> dict[str, float]:
        """NLL, and accuracy and ECE, or RMSE, from such sums."""
        tally = Tally()
        tally.values = values[2:]
        quality = {name: value for name, value in tally.summary().items() if name in ("accuracy", "ece", "rmse")}
        return {"nll": float(values[0] / values[1]), **quality}
