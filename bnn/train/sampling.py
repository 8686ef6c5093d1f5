"""How layers draw in the steps of `bnn.fit`: an option of the run, in force around each step and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from bnn.prediction import layers_with_sampling

DEFAULT = "local"  # the fastest at equal validation NLL: docs/decisions.md, "Training draws every position by itself"


def sampling_of(network: nn.Module, asked: str | None) -> str | None:
    """The `sampling` of training steps: the one asked for, else the default; None where no layer has the option.

    Raises:
        ValueError: one is asked for, and no layer has it.
    """
    if layers_with_sampling(network):
        return DEFAULT if asked is None else asked
    if asked is not None:
        raise ValueError(f"no layer of this network has the option 'sampling': leave sampling={asked!r} out")
    return None


class StepSampling:
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
