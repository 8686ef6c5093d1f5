"""The noise of real targets: where training begins with it, and what it is once training has ended.

A noise that is learned together with the weights follows what the network has seen: it is too small where the network
fits that too well, too large where training was too short for it, and it holds the spread of single draws, which a
prediction adds once more. So the likelihood settles it in the end, on validation data where there are enough.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.seeds import own_randomness, seed_everything
from bnn._engine.inputs import device_of, evaluating
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order, taken, to_device
from bnn.likelihoods.base import fitting_targets, predictive_nll
from bnn.prediction import draws
from bnn.train.monitor import LEAST, held_out_of, known, scoring_samples

FIRST, MOST = 2_000, 10_000  # inputs of training that the noise begins with; inputs that it is settled on
SOME = 8  # known validation values that say whether the residuals of training are too small
BATCH, KEPT_BYTES = 500, 2**28  # inputs that run at a time; draws' outputs that are kept
VALIDATION, TRAINING = "validation", "training"


@dataclass(frozen=True)
class NoiseStage:
    """How the noise of a training is settled.

    Args:
        likelihood: the one that is trained.
        data: the training data, as `bnn.fit` takes them; None: their targets do not count, as under a teacher alone.
        validation: held-out data, or None.
        samples: draws of a prediction; None: as many as `bnn.predict` takes by default.
    """

    likelihood: Any
    data: Any
    validation: Any = None
    samples: int | None = None

    def start_(self, network: nn.Module, batches: Iterator[tuple[Any, Any]]) -> None:
        """Puts a noise that is learned where the network at hand leaves it, in place: at the rms of its residuals.

        A noise that a training has settled stays, but for its tails: the next training goes on from there. The weights
        are at their means.

        Args:
            batches: inputs and targets of training, of which the first are enough.
        """
        found = likelihoods.about(self.likelihood)
        found.without_tails_()
        if self.data is not None and found.starts and found.settles and not found.settled:
            outputs, targets = gathered_draws(network, batches, found, 0, 0, FIRST)
            if targets is not None:
                found.start_(outputs, targets)
                found.settled = False

    def run_(self, network: nn.Module, seed: int) -> dict[str, Any] | None:
        """Settles the noise, in place; the same again from the same network and seed.

        Returns:
            What was found, as JSON: the noise by its name, `before` it, the NLL of `inputs` inputs of `data`,
            "validation" or "training"; None where the likelihood has no noise that is learned.
        """
        own = likelihoods.about(self.likelihood)
        held_out = held_out_of(self.data, self.validation)
        held_out = None if held_out is None or _unlabelled(taken(held_out)) else held_out
        training = self.data.train if isinstance(self.data, Data) else self.data
        training = None if training is None or _unlabelled(training) else training
        if (held_out is None and training is None) or not own.settles:
            return None
        counts = [0] if held_out is None else known(held_out, len(_scales(own)))
        with own_randomness(device_of(network)):
            seed_everything(seed)  # for a loader that shuffles
            if training is None or min(counts) >= LEAST:
                return self._on(VALIDATION, held_out, network, own, seed)
            found = self._on(TRAINING, training, network, own, seed)
            return found if found is None or max(counts) < SOME else self._with_few_(network, seed, found, counts)

    def _on(self, name: str, data: Any, network: nn.Module, likelihood: Any, seed: int) -> dict[str, Any] | None:
        found = settle_(network, likelihood, batches_in_order(thinned(data), BATCH), seed, self.samples)
        return None if found is None else found | {"data": name}

    def _with_few_(self, network: nn.Module, seed: int, found: dict[str, Any], counts: list[int]) -> dict[str, Any]:
        """The noise `found` on training data; for targets of which enough validation values are known, or a few that
        say that it is larger, what these say.

        Args:
            counts: known validation values of every target.
        """
        own = likelihoods.about(self.likelihood)
        other, scale = copy.deepcopy(own), own.noise[0].removeprefix("_")
        held_out = held_out_of(self.data, self.validation)
        few = self._on(VALIDATION, held_out, network, other, seed)
        if few is None or scale not in found:
            return found
        pairs = zip(counts, few[scale], found[scale], strict=True)
        which = [count >= LEAST or (count >= SOME and held > trained) for count, held, trained in pairs]
        if not any(which):
            return found
        own.adopt_(other, which)
        return few | own.levels() | {"before": found["before"]}


def _scales(likelihood: Any) -> list[float]:
    """The numbers that its noise has: one, or one for every target."""
    return next(iter(likelihood.levels().values()), [0.0])


def held_out_losses(network: nn.Module, likelihood: Any, data: Data, seed: int = 0) -> Tensor | None:
    """-log p of every validation input (N,), of the prediction as a whole; None where there are none."""
    if data.validation is None:
        return None
    samples = scoring_samples(network, None)
    batches = batches_in_order(thinned(data.validation), BATCH)
    outputs, targets = gathered_draws(network, batches, likelihood, samples, seed, MOST)
    return None if targets is None else predictive_nll(likelihood, outputs, targets).detach().cpu()


@dataclass(frozen=True)
class Comparison:
    """How a run compares with its plain network, on the same validation data.

    Args:
        plain, run: NLL per input, in the units that are trained on.
        error: the standard error of the difference, paired by inputs.
        inputs: how many.
    """

    plain: float
    run: float
    error: float
    inputs: int

    @classmethod
    def of(cls, plain: Tensor, run: Tensor | None) -> Comparison | None:
        """From the losses of every input, (N,) each; None where there is nothing to compare."""
        if run is None or len(run) != len(plain) or len(run) < 2:
            return None
        difference = (run - plain).double()
        error = float(difference.std() / len(difference) ** 0.5)
        return cls(float(plain.mean()), float(run.mean()), error, len(difference))

    @property
    def worse(self) -> bool:
        """Whether the run is clearly worse: by more than two standard errors."""
        return self.run - self.plain > 2 * self.error


def settle_(
    network: nn.Module, likelihood: Any, batches: Iterator[tuple[Any, Any]], seed: int, samples: int | None = None
) -> dict[str, Any] | None:
    """Settles the noise of `likelihood`, in place, on the first inputs and targets of `batches`.

    Returns:
        The noise by its name, `before` it, and the NLL of so many `inputs`; None where there are no targets.
    """
    found = likelihoods.about(likelihood)
    outputs, targets = gathered_draws(network, batches, found, scoring_samples(network, samples), seed, MOST)
    if targets is None:
        return None
    before = found.levels()
    found.settle_(outputs, targets)
    nll = float(predictive_nll(found, outputs, targets).detach().mean())
    return {**found.levels(), "before": before, "inputs": len(targets), "nll": nll}


def _unlabelled(data: Any) -> bool:
    """Whether these are inputs alone, as a teacher may have them."""
    return isinstance(data, Part) and data.y is None


def thinned(data: Any) -> Any:
    """At most `MOST` inputs, evenly spaced where that is possible."""
    found = taken(data)
    if not isinstance(found, Part) or len(found) <= MOST:
        return found
    return found.subset(torch.arange(MOST) * len(found) // MOST)


def gathered_draws(
    network: nn.Module, batches: Iterator[tuple[Any, Any]], likelihood: Any, samples: int | None, seed: int, most: int
) -> tuple[Tensor, Tensor | None]:
    """Outputs (K, N, ...) of the same K draws at the first inputs, and their targets (N, ...), on the network's device.

    The targets are None where there are none, or where the network's outputs are no tensor.
    """
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    device, size = device_of(network), 0
    with torch.no_grad(), evaluating(network):
        for x, y in batches:
            drawn = draws(network, to_device(x, device), samples, torch.Generator().manual_seed(seed))
            if not isinstance(drawn, Tensor) or not isinstance(y, Tensor):
                break
            outputs.append(drawn)
            targets.append(fitting_targets(y.to(device), drawn[0], likelihood))
            size += drawn.numel() * drawn.element_size()
            if sum(map(len, targets)) >= most or size >= KEPT_BYTES:
                break
    if not targets:
        return torch.empty(0), None
    return torch.cat(outputs, 1), torch.cat(targets)
