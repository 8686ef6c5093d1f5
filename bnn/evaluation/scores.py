"""From predictions and targets to metrics with bootstrap intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bnn import metrics
from bnn.calibration import calibration_curve
from bnn.data.dataset import TargetScale
from bnn.evaluation.curves import histogram, roc
from bnn.evaluation.outputs import Array, Outputs, as_array
from bnn.evaluation.pieces import OOD, Reliability, Selective, Uncertainty
from bnn.metrics import Interval
from bnn.metrics.bootstrap import intervals
from bnn.metrics.resampling import RESAMPLED

POINTS = 200  # of the accuracy-coverage curve that are kept, at most
RESOLVED = 1e-6  # nats; below this float32 cannot tell mutual information from rounding


@dataclass(frozen=True)
class Resampling:
    """How intervals are made, and in how many bins calibration is measured."""

    resamples: int
    seed: int
    bins: int

    def of_classes(self, outputs: Outputs, labels: Array, temperature: float | None) -> dict[str, Interval]:
        """All metrics of class probabilities."""
        return metrics.classification_metrics(
            outputs.centre,
            labels,
            bins=self.bins,
            temperature=temperature,
            resamples=self.resamples,
            seed=self.seed,
        )

    def of_reals(self, outputs: Outputs, targets: Array, **options: Any) -> dict[str, Interval]:
        """All metrics of real predictions: of the mixture of the draws where its Gaussians are known."""
        return metrics.regression_metrics(
            outputs.centre,
            np.sqrt(outputs.total),
            targets,
            draws=outputs.components,
            resamples=self.resamples,
            seed=self.seed,
            **options,
        )

    def few(self, outputs: Outputs, targets: Array, real: bool) -> dict[str, Interval]:
        """Accuracy, nll and ece, or rmse, nll and crps."""
        if real:
            return self.of_reals(outputs, targets, levels=())
        arrays = (outputs.centre, targets)
        calls = {
            "accuracy": (metrics.accuracy, {}),
            "nll": (metrics.nll, {}),
            "ece": (metrics.ece, {"bins": self.bins}),
        }
        values = {name: metric(*arrays, **options) for name, (metric, options) in calls.items()}
        resampled = {name: RESAMPLED[metric].make(*arrays, **options) for name, (metric, options) in calls.items()}
        return intervals(values, resampled, [len(targets)], self.resamples, 0.95, self.seed)

    def outside(self, inside: Outputs, outside: Outputs) -> OOD:
        """How well each score tells the two apart."""
        resampling = {"resamples": self.resamples, "seed": self.seed}
        used = [name for name in inside.scores if informative(name, inside, outside)]
        pairs = {name: (inside.scores[name], outside.scores[name]) for name in used}
        return OOD(
            len(outside.centre),
            uncertainty(outside),
            {name: metrics.detection_metrics(*pair, **resampling) for name, pair in pairs.items()},
            {name: histogram(name, inside, outside) for name in used},
            {name: roc(*pair) for name, pair in pairs.items()},
        )


def informative(name: str, *sets: Outputs) -> bool:
    """Whether a score, if it is one of the draws' disagreement, is more than rounding."""
    if name not in ("mutual_information", "epistemic"):
        return True
    largest = max(float(one.scores[name].max()) for one in sets)
    least = RESOLVED if name == "mutual_information" else RESOLVED**2 * max(float(one.total.max()) for one in sets)
    return all(one.draws > 1 for one in sets) and largest > least


def uncertainty(outputs: Outputs) -> Uncertainty:
    """Means over inputs (and outputs)."""
    parts = (outputs.total, outputs.aleatoric, outputs.epistemic)
    return Uncertainty(*(float(part.astype(np.float64).mean()) for part in parts))


def best_temperature(outputs: Outputs, labels: Array) -> float:
    """The temperature that makes these probabilities fit best."""
    with np.errstate(divide="ignore"):
        return metrics.temperature_scaling(np.log(outputs.centre.astype(np.float64)), labels)


def selective(outputs: Outputs, labels: Array) -> Selective:
    """The accuracy-coverage curve at `POINTS` places at most, full coverage included."""
    coverage, accuracy = metrics.accuracy_coverage(outputs.centre, labels)
    n = len(coverage)
    kept = np.arange(n) if n <= POINTS else np.ceil(n * np.arange(1, POINTS + 1) / POINTS).astype(np.intp) - 1
    return Selective(tuple(coverage[kept].tolist()), tuple(accuracy[kept].tolist()))


def reliability(outputs: Outputs, labels: Array, bins: int) -> Reliability:
    """The calibration curve of the most probable class."""
    curve = calibration_curve(outputs.centre, labels, bins)
    return Reliability(*(tuple(float(v) if np.isfinite(v) else math.nan for v in part) for part in curve))


def class_labels(outputs: Outputs, y: Tensor, classes: tuple[str, ...]) -> Array:
    """Labels (N,), after a check that the network has an output for every class."""
    width = outputs.centre.shape[1]
    if classes and width != len(classes):
        raise ValueError(f"the network has {width} outputs, the data {len(classes)} classes: they must be equal")
    labels = as_array(y)
    return labels.reshape(-1) if labels.shape == (len(labels), 1) and width == 2 else labels


def own_targets(outputs: Outputs, y: Tensor, target: TargetScale | None) -> Array:
    """Targets in their own units, after a check that they have the shape of the predictions."""
    if tuple(y.shape) != outputs.centre.shape:
        fits = y.numel() == outputs.centre.size
        hint = f"; use y.reshape{outputs.centre.shape}" if fits else ""
        raise ValueError(f"targets have shape {tuple(y.shape)}, the network predicts {outputs.centre.shape}{hint}")
    return as_array(y.double() if target is None else target.own_units(y.double()))
