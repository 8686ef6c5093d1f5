"""Train and evaluation mode of a network for the length of a block; every module goes back to the mode it was in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def same_mode_after(network: nn.Module) -> Iterator[None]:
    """Inside the block modes may change; afterwards, or after an error, they are what they were."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, which leaves modes alone; one look at the modules, as every prediction pays."""
    training = [module for module in network.modules() if module.training]
    if training:
        network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
