"""What a network says about a part, chunk by chunk, so that memory stays bounded whatever the number of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnn import likelihoods
from bnn.data.dataset import Part, TargetScale
from bnn.evaluation.finite import NotFinite
from bnn.prediction import predict

INPUT_BYTES = 2**28  # of prepared inputs held at a time
INPUTS = 10_000  # predicted at a time, at most: bounds the outputs of the draws

Array = NDArray[Any]
Change = Callable[[Tensor, int], Tensor]  # (stored inputs, the place of the first in the part) -> as many


@dataclass(frozen=True)
class Outputs:
    """Predictions for N inputs, in NumPy; of real targets in the target's own units.

    Args:
        centre: class probabilities (N, C), or means (N, ...).
        total, aleatoric, epistemic: in nats (N,), or variances (N, ...).
        scores: (N,) each, larger where the network is less sure.
        components: means and sds (K, N, ...) of the draws, of real targets, where the likelihood is known.
        draws: K.
    """

    centre: Array
    total: Array
    aleatoric: Array
    epistemic: Array
    scores: dict[str, Array]
    components: tuple[Array, Array] | None
    draws: int


@dataclass(frozen=True)
class Predictor:
    """A network with everything that fixes its predictions: equal seeds give equal draws, for every part the same."""

    network: nn.Module
    likelihood: Any
    samples: int | None
    batch_size: int
    seed: int
    target: TargetScale | None = None

    def __call__(
        self,
        part: Part,
        change: Change | None = None,
        advance: Callable[[int], None] = lambda inputs: None,
        what: str = "test",
    ) -> Outputs:
        """The predictions for all of `part`, whose stored inputs `change` alters first; errors call it `what`."""
        found = []
        wrong = NotFinite(what, len(part))
        for rows in self._chunks(part):
            chunk = part.subset(rows)
            if change is not None:
                chunk = replace(chunk, x=change(chunk.x, rows.start))
            x = chunk.inputs()
            found.append(self._predict(x))
            wrong.count(x, found[-1].centre, found[-1].total)
            advance(len(chunk))
        wrong.check()
        return joined(found)

    def _chunks(self, part: Part) -> Iterator[slice]:
        """Slices of whole batches: as many as fit."""
        one = part.inputs(slice(0, 1))
        fit = min(INPUTS, INPUT_BYTES // max(1, one.numel() * one.element_size()))
        size = max(1, fit // self.batch_size) * self.batch_size
        return (slice(start, min(start + size, len(part))) for start in range(0, len(part), size))

    def _predict(self, x: Tensor) -> Outputs:
        prediction = predict(
            self.network,
            x.to(device_of(self.network)),
            self.samples,
            self.likelihood,
            torch.Generator().manual_seed(self.seed),
            self.batch_size,
            keep_samples=True,
        )
        if isinstance(prediction, likelihoods.ClassPrediction):
            return of_classes(prediction)
        return of_reals(prediction, self.likelihood, self.target)


def of_classes(prediction: likelihoods.ClassPrediction) -> Outputs:
    """Predictions of one of C classes; a single logit of `Bernoulli` is two of them."""
    assert prediction.samples is not None
    probs, *information = prediction
    if len(probs) == probs.numel():  # the probability of a one
        probs = probs.flatten()
        probs, information = torch.stack([1 - probs, probs], 1), [part.flatten() for part in information]
    if probs.ndim != 2 or information[0].ndim != 1:
        raise ValueError(
            f"evaluate scores one label per input; the network predicts probabilities of shape {tuple(probs.shape)} "
            f"with uncertainties {tuple(information[0].shape)}: use bnn.predict and bnn.metrics"
        )
    total, aleatoric, epistemic = (as_array(part) for part in information)
    centre = as_array(probs)
    scores = {
        "max_prob": 1 - centre.max(axis=1).astype(np.float64),
        "entropy": total,
        "mutual_information": epistemic,
    }
    return Outputs(centre, total, aleatoric, epistemic, scores, None, len(prediction.samples))


def of_reals(prediction: likelihoods.RegressionPrediction, likelihood: Any, target: TargetScale | None) -> Outputs:
    """Predictions of real targets, with the Gaussian of every draw where the likelihood has one."""
    assert prediction.samples is not None
    target = TargetScale((0.0,), (1.0,)) if target is None else target
    mean, *variances = (part.double() for part in prediction)
    total, aleatoric, epistemic = (as_array(target.own_variance(part)) for part in variances)
    per_input = [as_array(part.reshape(len(part), -1).mean(1)) for part in variances]  # scaled: outputs count alike
    scores = {"total": per_input[0], "epistemic": per_input[2]}
    components = None
    gaussians = likelihoods.about(likelihood).components(prediction.samples)
    if gaussians is not None:
        means, sds = gaussians
        own_sds = target.own_variance(sds.double().square()).sqrt()
        components = (as_array(target.own_units(means.double())), as_array(own_sds))
    centre = as_array(target.own_units(mean))
    return Outputs(centre, total, aleatoric, epistemic, scores, components, len(prediction.samples))


def joined(parts: list[Outputs]) -> Outputs:
    """The predictions of all chunks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    centre, total, aleatoric, epistemic = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("centre", "total", "aleatoric", "epistemic")
    )
    scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in first.scores}
    columns = [part.components for part in parts if part.components is not None]
    components = (
        (np.concatenate([m for m, _ in columns], axis=1), np.concatenate([s for _, s in columns], axis=1))
        if columns
        else None
    )
    return Outputs(centre, total, aleatoric, epistemic, scores, components, first.draws)


def as_array(tensor: Tensor) -> Array:
    """A NumPy array of a tensor on any device; half precision becomes float32."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def device_of(network: nn.Module) -> torch.device:
    """The device of the network's first tensor."""
    tensor = next(chain(network.parameters(), network.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device
