"""BatchNorm statistics under posterior draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import one_by_one
from bnn._engine.inputs import check_network, number_of_inputs, same_mode_after
from bnn.data.batches import training_inputs
from bnn.data.forms import to_device
from bnn.ensemble import Ensemble


def refresh_batchnorm_(network: nn.Module, loader: Any, batches: int | None = None) -> int:
    """Re-estimates the running statistics of every BatchNorm in place, each batch under a posterior draw of its own.

    Right after a trained network is converted they belong to weights that are no longer there; after training they lag
    behind the last steps. Every running mean and variance becomes the plain average over the batches. Everything but
    BatchNorm runs in evaluation mode, without gradients; modes and momenta are left as they were.

    Args:
        network: a converted network, a plain one, or an `Ensemble`, of which every member sees every batch.
        loader: training inputs as `bnn.fit` takes them (a pair is a tuple), or any iterable of batches: inputs, or
            (inputs, targets). They should be of the training batch size, and augmented as in training.
        batches: use only so many; None: all of them, once.

    Returns:
        How many BatchNorm layers were refreshed.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> bnn.refresh_batchnorm_(net, torch.utils.data.DataLoader(torch.randn(64, 3), batch_size=16))
    1
    """
    check_network(network)
    norms = _norms(network)
    if not norms:
        return 0
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    with torch.no_grad(), _estimating(network, norms):
        seen = 0
        for x in training_inputs(loader):
            if batches is not None and seen == batches:
                break
            for net in network.members if isinstance(network, Ensemble) else [network]:
                one_by_one(net, [to_device(x, device)], [Draw.fresh(net, Call(net), inputs=number_of_inputs(x))])
            seen += 1
        if not seen:
            raise ValueError("the loader gave no batch, so there is nothing to estimate the statistics from")
    return len(norms)


def _norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """BatchNorm layers that keep running statistics."""
    found = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [norm for norm in found if norm.running_mean is not None]


@contextmanager
def _estimating(network: nn.Module, norms: list[nn.modules.batchnorm._BatchNorm]) -> Iterator[None]:
    """Only `norms` in train mode, averaging from the start; an error puts the old statistics back."""
    momenta = [norm.momentum for norm in norms]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    with same_mode_after(network):
        network.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # the average over all batches
        try:
            yield
        except BaseException:
            for buffer, value in kept:
                buffer.copy_(value)
            raise
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
