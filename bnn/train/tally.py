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
        found = likelihoods.about(likelihood)
        for output, target in pairs:
            if found.task is not None and isinstance(output, Tensor) and isinstance(target, Tensor):
                self.add_points(found, found.point(output.detach()), target.detach())

    def add_points(self, likelihood: likelihoods.Likelihood, point: Tensor, target: Tensor) -> None:
        """Adds predictions, as `Likelihood.point` gives them, of targets."""
        added = torch.zeros(2 + 3 * BINS, dtype=torch.double, device=point.device)
        if likelihood.task == "classification" and not target.is_floating_point():
            _add_hits_(added, point, target, likelihood.ignore_index)
        elif likelihood.task == "regression":
            added[0], added[1] = target.numel(), (point - target).double().square().sum()
        self.values[4:] += added.cpu()

    def summary(self) -> dict[str, float]:
        """Means over the epoch: data, kl_u, kl_lamda; accuracy and ece, or rmse, where they have a meaning."""
        steps = max(float(self.values[0]), 1)
        return {name: float(self.values[1 + i]) / steps for i, name in enumerate(PARTS)} | self.quality()

    def quality(self) -> dict[str, float]:
        """Accuracy and ece, or rmse, where they have a meaning."""
        targets = float(self.values[4])
        count, confidence, hits = self.values[6:].view(3, BINS)
        if count.sum() > 0:
            ece = float((confidence - hits).abs().sum() / count.sum())
            return {"accuracy": float(hits.sum() / count.sum()), "ece": ece}
        return {"rmse": float(self.values[5] / targets) ** 0.5} if targets else {}


def _add_hits_(added: Tensor, probs: Tensor, target: Tensor, ignored: int | None) -> None:
    """Adds counts, confidences and hits of class probabilities (N, C, ...), in place."""
    confidence, guess = probs.max(1)
    counted = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    p, hit = confidence[counted].double(), (guess == target)[counted].double()
    bins = (p * BINS).ceil().long().clamp(1, BINS) - 1  # (lo, hi]
    for row, weight in zip(added[2:].view(3, BINS), (torch.ones_like(p), p, hit), strict=True):
        row.index_add_(0, bins, weight)
    added[0] = len(p)
