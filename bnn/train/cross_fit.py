"""The noise of a small table: from networks that have not seen the rows they are asked about.

Where validation inputs are few they say little about the noise, and what they say is too good: they have chosen the
epoch already. Residuals of training inputs are smaller still. So plain networks are trained, each on all training
inputs but those of one fold, and asked about that fold.

A network of a fold has seen fewer inputs than the one that counts, and its errors are larger for that. Where there are
enough validation inputs to settle a noise on, both have one by the same inputs, which have chosen the epochs of both;
then folds only say by which factor such a noise misses what is new. With fewer, errors on folds are the noise.

Either way its tails are the likeliest, and its scale is the one with which intervals hold as much as they say: networks
of folds may miss a few rows by far more than the one that counts, which a likeliest scale would follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.progress import progress_of
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order
from bnn.functional.linalg import inverse_softplus
from bnn.likelihoods.base import predictive_nll
from bnn.likelihoods.heteroscedastic import HeteroscedasticGaussian
from bnn.likelihoods.noise import RealNoise
from bnn.train.monitor import LEAST as SETTLES
from bnn.train.monitor import known
from bnn.train.settling import BATCH, gathered_draws

NUMBER = 5  # of folds
FEW = 100  # validation inputs, of several targets known values; so many settle a noise alone (docs/decisions.md)
MOST = 2_000  # training inputs; of more, residuals of the training data miss less
LEAST = 20  # training inputs
FOLDS = "folds"  # what `history.noise` calls these data
NEARLY_0 = 1e-12
TITLE = "settling"

Trained = tuple[nn.Module, Any]  # a network, and its likelihood with the noise of its training


@dataclass(frozen=True)
class Folds:
    """What networks say of the training inputs that they have not seen, each with the noise of its own training.

    Args:
        outputs: of the networks, (1, n, ...).
        targets: (n, ...).
        means, sds: of their noise, (n, D, ...) each, where the noise of the network that counts is to be multiplied by
            what makes the targets likeliest; None: it is to be the likeliest around the outputs, whatever it was.
    """

    outputs: Tensor
    targets: Tensor
    means: Tensor | None = None
    sds: Tensor | None = None

    def settle_(self, likelihood: Any) -> dict[str, Any]:
        """Settles the noise of `likelihood`, in place; returns what was found, as `History.noise` has it."""
        own = likelihoods.about(likelihood)
        before, judged, outputs = own.levels(), own, self.outputs
        if self.means is None or self.sds is None:
            own.settle_(outputs, self.targets)
            if isinstance(own, RealNoise):
                own.fit_intervals_(outputs, self.targets)
        else:
            assert isinstance(own, RealNoise)
            scales = next(iter(before.values()))  # one, or one for every target
            judged = HeteroscedasticGaussian(NEARLY_0, len(scales), tails=own.tails).to(self.sds)
            outputs = torch.cat([self.means, inverse_softplus(self.sds)], 1)[None]
            judged.settle_(outputs, self.targets)
            judged.fit_intervals_(outputs, self.targets)
            own.rescale_(judged)
        nll = float(predictive_nll(judged, outputs, self.targets).detach().mean())
        return {**own.levels(), "before": before, "inputs": len(self.targets), "nll": nll, "data": FOLDS}


def cross_fits(likelihood: Any, data: Data) -> bool:
    """Whether the noise of a training on these data is settled by folds: real targets, and few inputs."""
    own = likelihoods.about(likelihood)
    if data.task != "regression" or not own.settles or not LEAST <= len(data.train) <= MOST:
        return False
    return _known(own, data) < FEW


def cross_fit(
    likelihood: Any,
    data: Data,
    seed: int,
    train: Callable[[Data, int], Trained],
    progress: bool | None = False,
) -> Folds:
    """Trains the networks of all folds.

    Args:
        data: whose training inputs are the folds; validation data serve all networks alike.
        train: (data without a fold, number of the fold) -> a plain network that was trained on them.
        progress: a bar over the folds on terminals (None); True: elsewhere lines; False: nothing.
    """
    own = likelihoods.about(likelihood)
    relative = isinstance(own, RealNoise) and _known(own, data) >= SETTLES
    parts = []
    with progress_of(progress, NUMBER, TITLE, "networks", transient=True) as advance:
        for i, fold in folds(data, seed):
            advance(f"noise, fold {i + 1}", 0)
            parts.append(_held_out(*train(without(data, fold), i), data.train.subset(fold), seed, relative))
            advance(f"noise, fold {i + 1}", 1)
    outputs, targets = torch.cat([one.outputs for one in parts], 1), torch.cat([one.targets for one in parts])
    if not relative:
        return Folds(outputs, targets)
    means, sds = (torch.cat(each) for each in zip(*((one.means, one.sds) for one in parts), strict=True))
    return Folds(outputs, targets, means, sds)


def _known(likelihood: Any, data: Data) -> int:
    """Validation values of the target of which least are known."""
    scales = next(iter(likelihood.levels().values()), [0.0])
    return 0 if data.validation is None else min(known(data.validation, len(scales)))


def folds(data: Data, seed: int) -> list[tuple[int, Tensor]]:
    """The folds by their numbers: a random partition of the training inputs into nearly equal parts."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    return list(enumerate(part.sort().values for part in order.tensor_split(NUMBER)))


def without(data: Data, fold: Tensor) -> Data:
    """The data without the training inputs of a fold, and without any that are kept for other ends."""
    rest = torch.ones(len(data.train), dtype=torch.bool)
    rest[fold] = False
    return replace(data, train=data.train.subset(rest.nonzero().squeeze(1)), test=None, guarantee=None)


def _held_out(network: nn.Module, likelihood: Any, part: Part, seed: int, relative: bool) -> Folds:
    """What a network says of inputs it has not seen."""
    found = likelihoods.about(likelihood)
    outputs, targets = gathered_draws(network, batches_in_order(part, BATCH), found, 0, seed, len(part))
    assert targets is not None
    components = found.components(outputs) if relative else None
    if components is None:
        return Folds(outputs, targets)
    means, sds = (one[0].detach().double() for one in components)
    return Folds(outputs, targets, means, sds)
