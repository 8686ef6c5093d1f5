"""Running sums over the steps of an epoch: small, exact to store, and additive over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnn import likelihoods

BINS = 15  # of the calibration error, of equal width
PARTS = ("data", "kl_u", "kl_lamda")


class Tally:
    """Sums of one epoch.

    `values` (float64) holds the number of steps, the sums of data term and KL parts over steps, the number of targets,
    the sum of squared errors, and three rows of BINS: counts, confidences and hits by confidence.
    """

    def __init__(self) -> None:
        self.values = torch.zeros(6 + 3 * BINS, dtype=torch.double, device="cpu")

    def add_step(self, parts: Tensor) -> None:
        """Adds a step: data term, KL parts, (3,)."""
        self.values[0] += 1
        self.values[1:4] += parts.double().cpu()

    def add_outputs(self, likelihood: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Adds what the network said about targets: [(output, target), ...], one pair per draw."""
        for output, target in pairs:
            if not isinstance(output, Tensor) or not isinstance(target, Tensor):
                continue
            self.values[4:] += _seen(likelihood, output.detach(), target.detach()).cpu()

    def summary(self) -> dict[str, float]:
        """Means over the epoch: data, kl_u, kl_lamda; accuracy and ece, or rmse, where they have a meaning."""
        steps, targets = float(self.values[0]), float(self.values[4])
        means = {name: float(self.values[1 + i]) / max(steps, 1) for i, name in enumerate(PARTS)}
        count, confidence, hits = self.values[6:].view(3, BINS)
        if count.sum() > 0:
            means["accuracy"] = float(hits.sum() / count.sum())
            means["ece"] = float((confidence - hits).abs().sum() / count.sum())
        elif targets:
            means["rmse"] = float(self.values[5] / targets) ** 0.5
        return means


def _seen(likelihood: Any, output: Tensor, target: Tensor) -> Tensor:
    """What a batch adds to `values[4:]`."""
    added = torch.zeros(2 + 3 * BINS, dtype=torch.double, device=output.device)
    if isinstance(likelihood, likelihoods.Categorical) and not target.is_floating_point():
        confidence, guess = output.float().softmax(1).max(1)
        counted = target != likelihood.ignore_index
        p, hit = confidence[counted].double(), (guess == target)[counted].double()
        bins = (p * BINS).ceil().long().clamp(1, BINS) - 1  # (lo, hi]
        rows = added[2:].view(3, BINS)
        for row, weight in zip(rows, (torch.ones_like(p), p, hit), strict=True):
            row.index_add_(0, bins, weight)
        added[0] = len(p)
    elif isinstance(likelihood, likelihoods.Gaussian | likelihoods.HeteroscedasticGaussian):
        mean = output if isinstance(likelihood, likelihoods.Gaussian) else likelihood.split(output)[0]
        added[0], added[1] = target.numel(), (mean - target).double().square().sum()
    return added
