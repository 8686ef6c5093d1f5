"""One training step: what every process runs, and how layers draw in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn.ensemble import Ensemble
from bnn.objective import ELBO
from bnn.prediction import layers_with_sampling
from bnn.train.tally import Tally

DEFAULT_SAMPLING = (
    "local"  # the fastest at equal validation NLL: docs/decisions.md, "Training draws every position apart"
)


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
