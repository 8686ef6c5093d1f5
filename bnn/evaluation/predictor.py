"""What a network says about a part, chunk by chunk, so that memory stays bounded whatever the number of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnn import closed_form, likelihoods
from bnn._engine.inputs import device_of
from bnn.data.dataset import Part, TargetScale, tensors_in
from bnn.data.forms import to_device
from bnn.likelihoods.base import predictive_nll
from bnn.metrics.lognormal import lognormal_moments
from bnn.metrics.predicted import predictive_interval
from bnn.prediction import predict

INPUT_BYTES = 2**28  # of prepared inputs held at a time
INPUTS = 10_000  # predicted at a time, at most: bounds the outputs of the draws

Array = NDArray[Any]
Change = Callable[[Tensor, int], Tensor]  # (stored inputs, the place of the first in the part) -> as many


@dataclass(frozen=True)
class Outputs:
    """Predictions for N inputs, in NumPy; of real targets in the target's own units.

    Args:
        mean: over the draws: class probabilities (N, C), or means (N, ...).
        total, aleatoric, epistemic: in nats (N,), or variances (N, ...).
        scores: (N,) each, larger where the network is less sure.
        components: means and sds (K, N, ...) of the draws, of real targets, where each is a Gaussian; on a log scale of
            the logarithm of the target, and where draws are no Gaussians of the one with their moments.
        draws: K.
        losses: -log p(y) of every input (N,), of real targets, where the draws are no Gaussians.
        scaled: mean and total sd (N, ...) of real targets, in the units that the network was trained in.
        scale: of `components`, "linear" or "log"; all else is in own units.
        df: degrees of freedom of the noise of `components`; inf: it is Gaussian.
    """

    mean: Array
    total: Array
    aleatoric: Array
    epistemic: Array
    scores: dict[str, Array]
    components: tuple[Array, Array] | None
    draws: int
    losses: Array | None = None
    scaled: tuple[Array, Array] | None = None
    scale: str = "linear"
    df: float = math.inf

    def interval(self, level: float) -> tuple[Array, Array]:
        """Ends (N, ...) of the central interval of real targets, of the mixture where the draws are Gaussians."""
        return predictive_interval(self.mean, np.sqrt(self.total), self.components, level, self.scale, self.df)


@dataclass(frozen=True)
class Predictor:
    """A network with everything that fixes its predictions: equal seeds give equal draws, for every part the same."""

    network: nn.Module
    likelihood: Any
    samples: int | str | None
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
            found.append(self._predict(x, chunk.y))
            wrong.count(x, found[-1].mean, found[-1].total)
            advance(len(chunk))
        wrong.check()
        return joined(found)

    def _chunks(self, part: Part) -> Iterator[slice]:
        """Slices of whole batches: as many as fit."""
        one = tensors_in(part.inputs(slice(0, 1)))
        fit = min(INPUTS, INPUT_BYTES // max(1, sum(tensor.numel() * tensor.element_size() for tensor in one)))
        size = max(1, fit // self.batch_size) * self.batch_size
        return (slice(start, min(start + size, len(part))) for start in range(0, len(part), size))

    def _predict(self, x: Any, y: Tensor | None) -> Outputs:
        prediction = predict(
            self.network,
            to_device(x, device_of(self.network)),
            self.samples,
            self.likelihood,
            torch.Generator().manual_seed(self.seed),
            self.batch_size,
            keep_samples=self.samples != closed_form.NAME,
        )
        if isinstance(prediction, likelihoods.ClassPrediction):
            return of_classes(prediction)
        if prediction.samples is None:
            raise ValueError(
                f'samples="{closed_form.NAME}" draws nothing for real targets, and their scores need draws: evaluate '
                "with samples=20, or use bnn.predict and bnn.metrics"
            )
        outputs = of_reals(prediction, self.likelihood, self.target)
        likelihood = likelihoods.about(self.likelihood)
        known = likelihood.components(prediction.samples) is None and likelihood.task is not None
        if not known or y is None or y.shape != prediction.mean.shape:
            return outputs
        return replace(outputs, losses=losses(prediction.samples, y, self.likelihood, self.target))


def of_classes(prediction: likelihoods.ClassPrediction) -> Outputs:
    """Predictions of one of C classes; a single logit of `Bernoulli` is two of them."""
    draws = closed_form.DRAWS if prediction.samples is None else len(prediction.samples)
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
    mean = as_array(probs)
    scores = {
        "max_prob": 1 - mean.max(axis=1).astype(np.float64),
        "entropy": total,
        "mutual_information": epistemic,
    }
    return Outputs(mean, total, aleatoric, epistemic, scores, None, draws)


def of_reals(prediction: likelihoods.RegressionPrediction, likelihood: Any, target: TargetScale | None) -> Outputs:
    """Predictions of real targets, with the Gaussian of every draw where the likelihood has one."""
    assert prediction.samples is not None
    target = TargetScale((0.0,), (1.0,)) if target is None else target
    if target.log:
        return of_logs(prediction, likelihood, target)
    mean, *variances = (part.double() for part in prediction)
    total, aleatoric, epistemic = (as_array(target.own_variance(part)) for part in variances)
    per_input = [
        as_array(part.reshape(len(part), -1).mean(1).sqrt()) for part in variances
    ]  # scaled: outputs count alike
    scores = {"total": per_input[0], "epistemic": per_input[2]}
    components, about = None, likelihoods.about(likelihood)
    gaussians = about.components(prediction.samples)
    if gaussians is not None:
        means, sds = gaussians
        own_sds = target.own_variance(sds.double().square()).sqrt()
        components = (as_array(target.linear(means.double())), as_array(own_sds))
    own_mean, scaled = as_array(target.own_units(mean)), (as_array(mean), as_array(variances[0].sqrt()))
    moments, draws = (own_mean, total, aleatoric, epistemic), len(prediction.samples)
    return Outputs(*moments, scores, components, draws, scaled=scaled, df=about.df())


def of_logs(prediction: likelihoods.RegressionPrediction, likelihood: Any, target: TargetScale) -> Outputs:
    """Predictions of positive targets, whose logarithm every draw predicts: the moments of a mixture of lognormals.

    Draws that are no Gaussians count as the one with their mean and variance.
    """
    assert prediction.samples is not None
    mean, total, *parts = (part.double() for part in prediction)
    about = likelihoods.about(likelihood)
    gaussians = about.components(prediction.samples)
    means, sds = (mean[None], total.sqrt()[None]) if gaussians is None else (one.double() for one in gaussians)
    logs = as_array(target.linear(means)), as_array(target.own_variance(sds.square()).sqrt())
    own = lognormal_moments(*logs, about.df())
    aleatoric, epistemic = np.square(own.aleatoric), np.square(own.epistemic)
    if gaussians is None:  # the law of total variance for a mean of log y that is Gaussian
        noise, spread = (as_array(target.own_variance(part)) for part in parts)
        share = -np.expm1(-noise) / -np.expm1(-(noise + spread))
        aleatoric, epistemic = aleatoric * share, aleatoric * (1 - share)
    variances = (aleatoric + epistemic, aleatoric, epistemic)
    usual = lognormal_moments(np.array([target.mean]), np.array([target.sd]))  # of the training part
    per_input = [np.reshape(one / np.square(usual.aleatoric), (len(mean), -1)).mean(1) ** 0.5 for one in variances]
    return Outputs(
        own.mean,
        *variances,
        {"total": per_input[0], "epistemic": per_input[2]},
        logs,
        len(prediction.samples),
        scaled=(as_array(mean), as_array(total.sqrt())),
        scale="log",
        df=about.df(),
    )


def losses(samples: Tensor | None, y: Tensor, likelihood: Any, target: TargetScale | None) -> Array:
    """-log 1/K sum_k p(y | output_k) of every input (N,), a density of the target in its own units.

    With y = mean + sd z the density of y is that of z divided by sd: every target adds log sd. On a log scale this is
    the density of log y, and every target adds log y, too.
    """
    assert samples is not None
    scaled = predictive_nll(likelihood, samples, y.to(samples.device))
    if target is None:
        return as_array(scaled)
    added = np.where(np.isnan(as_array(y)), 0.0, np.log(target.sd))  # (N, ..., D); nothing where one is missing
    if target.log:
        added = added + np.nan_to_num(as_array(target.linear(y.double())))
    return as_array(scaled) + added.reshape(len(y), -1).sum(1)


class NotFinite:
    """Counts rows of one set whose inputs hold NaN, or whose predictions are not finite.

    Args:
        what: the set, for the error.
        rows: of the set.
    """

    def __init__(self, what: str, rows: int) -> None:
        self.what, self.rows = what, rows
        self.inputs = self.outputs = 0

    def count(self, x: Any, *outputs: Array) -> None:
        """Adds prepared inputs (n, ...) and what was predicted for them, arrays (n, ...)."""
        bad = [torch.isnan(one).reshape(len(one), -1).any(1) for one in tensors_in(x)]
        self.inputs += int(torch.stack(bad).any(0).sum())
        wrong = [~np.isfinite(one).reshape(len(one), -1).all(axis=1) for one in outputs]
        self.outputs += int(np.any(wrong, axis=0).sum())

    def check(self) -> None:
        """Raises if there were any."""
        if self.inputs:
            raise ValueError(
                f"{self.inputs} of {self.rows} rows of the inputs ({self.what}) hold NaN: remove these rows, or fill "
                "them in before evaluating"
            )
        if self.outputs:
            raise ValueError(
                f"the network's predictions for {self.outputs} of {self.rows} rows ({self.what}) are NaN or infinite, "
                "though the inputs hold no NaN: its weights may have diverged (train with a smaller learning rate), or "
                "the inputs are too large"
            )


def joined(parts: list[Outputs]) -> Outputs:
    """The predictions of all chunks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = ("mean", "total", "aleatoric", "epistemic", "losses")
    columns: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in names}
    components = _joined([np.stack(part.components) for part in parts if part.components is not None], axis=2)
    scaled = _joined([np.stack(part.scaled) for part in parts if part.scaled is not None], axis=1)
    return replace(
        first,
        **columns,
        scores={name: np.concatenate([part.scores[name] for part in parts]) for name in first.scores},
        components=None if components is None else (components[0], components[1]),
        scaled=None if scaled is None else (scaled[0], scaled[1]),
    )


def _joined(arrays: list[Array], axis: int = 0) -> Array | None:
    return None if not arrays or arrays[0] is None else np.concatenate(arrays, axis=axis)


def as_array(tensor: Tensor) -> Array:
    """A NumPy array of a tensor on any device; half precision becomes float32."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
