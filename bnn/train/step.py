"""One training step: what every process runs, how layers draw in it, and the running sums over an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn.ensemble import Ensemble
from bnn.objective import ELBO
from bnn.prediction import layers_with_sampling

DEFAULT_SAMPLING = (
    "local"  # the fastest at equal validation NLL: docs/decisions.md, "Training draws every position apart"
)
BINS = 15  # of the calibration error, of equal width
PARTS = ("data", "kl_u", "kl_lamda")


class Objective(nn.Module):
    """What every process runs: the loss of its share of a batch, and numbers to add up."""

    def __init__(self, elbo: ELBO) -> None:
        super().__init__()
        self.elbo = elbo

    def forward(self, x: Any, y: Any, epoch: float, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, its parts (3,) and the tally of the outputs.

        The mean of the loss over processes is the loss of the whole batch. The gradient of each member of an ensemble
        is that of training it alone.
        """
        result, pairs = self.elbo.with_outputs(x, y, epoch=epoch)
        members = len(self.elbo.net.members) if isinstance(self.elbo.net, Ensemble) else 1
        loss = members * (result.loss + (share - 1) * result.data)
        parts = torch.stack([result.data * share, result.kl_u, result.kl_lamda]).detach()
        tally = Tally()
        tally.add_outputs(self.elbo.likelihood, pairs)
        return loss, parts, tally.values.to(loss.device)


def sampling_of(network: nn.Module, asked: str | None) -> str | None:
    """The `sampling` of training steps: the one asked for, else the default; None where no layer has the option.

    Raises:
        ValueError: one is asked for, and no layer has it.
    """
    if layers_with_sampling(network):
        return DEFAULT_SAMPLING if asked is None else asked
    if asked is not None:
        raise ValueError(f"no layer of this network has the option 'sampling': leave sampling={asked!r} out")
    return None


class Sampling:
    """Puts `sampling` in the place of every layer's own option for a while; None leaves each layer its own."""

    def __init__(self, network: nn.Module, sampling: str | None) -> None:
        self._layers = [] if sampling is None else layers_with_sampling(network)
        self._options = [replace(layer.options, sampling=sampling) for layer in self._layers]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside the block layers draw by `sampling`; after it, however it ends, by their own option again."""
        own = [layer.options for layer in self._layers]
        try:
            for layer, options in zip(self._layers, self._options, strict=True):
                layer.options = options
            yield
        finally:
            for layer, options in zip(self._layers, own, strict=True):
                layer.options = options


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
            known = ~target.isnan()
            added[0] = known.sum()
            added[1] = torch.where(known, point - target, 0.0).double().square().sum()
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
