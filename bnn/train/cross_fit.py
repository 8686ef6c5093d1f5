"""The noise of a small table: from networks that have not seen the rows they are asked about.

Where validation inputs are few they say little about the noise, and what they say is too good: they have chosen the
epoch already. Residuals of training inputs are smaller still. So plain networks are trained, each on all training
inputs but those of one fold, and the noise becomes what makes the inputs of all folds likeliest, each predicted by the
network that has not seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order
from bnn.likelihoods.base import predictive_nll
from bnn.train.monitor import enough
from bnn.train.settling import BATCH, gathered_draws

NUMBER = 5  # of folds
FEW = 40  # validation inputs; so many say more than networks that have seen a fifth less (docs/decisions.md)
MOST = 2_000  # training inputs; of more, residuals of the training data miss less
LEAST = 20  # training inputs
FOLDS = "folds"  # what `history.noise` calls these data


def cross_fits(likelihood: Any, data: Data) -> bool:
    """Whether the noise of a training on these data is settled by folds: real targets, and few inputs."""
    found = likelihoods.about(likelihood)
    small = LEAST <= len(data.train) <= MOST and not enough(data.validation, FEW)
    return data.task == "regression" and found.settles and small


def cross_fit_(likelihood: Any, data: Data, seed: int, train: Callable[[Data, int], nn.Module]) -> dict[str, Any]:
    """Settles the noise of `likelihood`, in place, on what networks predict for the training inputs of other folds.

    Args:
        data: whose training inputs are the folds; validation data serve all networks alike.
        train: (data without a fold, number of the fold) -> a plain network that was trained on them.

    Returns:
        What was found, as `History.noise` has it.
    """
    found = likelihoods.about(likelihood)
    parts = [
        _held_out(train(without(data, fold), i), data.train.subset(fold), found, seed) for i, fold in folds(data, seed)
    ]
    outputs, targets = torch.cat([one for one, _ in parts], 1), torch.cat([y for _, y in parts])
    before = found.levels()
    found.settle_(outputs, targets)
    nll = float(predictive_nll(found, outputs, targets).detach().mean())
    return {**found.levels(), "before": before, "inputs": len(targets), "nll": nll, "data": FOLDS}


def folds(data: Data, seed: int) -> list[tuple[int, Tensor]]:
    """The folds by their numbers: a random partition of the training inputs into nearly equal parts."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    return list(enumerate(part.sort().values for part in order.tensor_split(NUMBER)))


def without(data: Data, fold: Tensor) -> Data:
    """The data without the training inputs of a fold, and without any that are kept for other ends."""
    rest = torch.ones(len(data.train), dtype=torch.bool)
    rest[fold] = False
    return replace(data, train=data.train.subset(rest.nonzero().squeeze(1)), test=None, guarantee=None)


def _held_out(network: nn.Module, part: Part, likelihood: Any, seed: int) -> tuple[Tensor, Tensor]:
    """What a network says of inputs it has not seen, (1, n, ...), and their targets."""
    outputs, targets = gathered_draws(network, batches_in_order(part, BATCH), likelihood, 0, seed, len(part))
    assert targets is not None
    return outputs, targets
