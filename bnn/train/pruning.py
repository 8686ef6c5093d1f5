"""Pruning at the end of training, and the epochs after it."""

from __future__ import annotations

from typing import Any

from torch import nn

from bnn.data.dataset import Data
from bnn.prune import prune_
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.prune_options import PruneOptions
from bnn.train.schedule import Schedule


def prune_and_train_(
    net: nn.Module, data: Data, options: PruneOptions, schedule: Schedule, settings: dict[str, Any]
) -> History | None:
    """Prunes a trained network and trains what is left, in place, with a new optimiser; None for no epochs.

    Pruning follows from the network and the data, so that a run that resumes prunes the same again, and goes on from
    the checkpoint of the epochs after it.

    Args:
        schedule: of the training before; the KL counts in full from the start now.
        settings: further arguments of `bnn.fit`.
    """
    prune_(net, options.keep, options.by, activations=data.train if options.by == "output" else None)
    if not options.epochs:
        return None
    tuned = Schedule.of(schedule.to_dict() | {"epochs": options.epochs, "warmup": 0, "anneal": 0})
    return fit(net, data, schedule=tuned, **settings)
