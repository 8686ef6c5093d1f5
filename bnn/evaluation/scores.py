"""From predictions and targets to metrics with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bnn import metrics
from bnn.calibration import calibration_curve
from bnn.data.dataset import TargetScale
from bnn.evaluation.coverage import target_names
from bnn.evaluation.pieces import (
    OOD,
    ROC,
    Detection,
    Histogram,
    Reliability,
    RiskCoverage,
    Selective,
    TargetScores,
    Uncertainty,
)
from bnn.evaluation.predictor import Array, Outputs, as_array
from bnn.metrics import Interval

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of intervals
POINTS = 200  # of a curve that are kept, at most
BINS = 30  # of a histogram
TOTAL, EPISTEMIC = ("entropy", "total"), ("mutual_information", "epistemic")  # scores of classes, of real targets
RESOLVED = 1e-6  # nats, or a share of the total sd; below this float32 cannot tell disagreement from rounding


@dataclass(frozen=True)
class Resampling:
    """How intervals are made, and in how many bins calibration is measured."""

    resamples: int
    seed: int
    bins: int

    def of_classes(
        self, outputs: Outputs, labels: Array, temperature: float | None, **options: Any
    ) -> dict[str, Interval]:
        """All metrics of class probabilities."""
        return metrics.classification_metrics(
            outputs.mean,
            labels,
            bins=self.bins,
            temperature=temperature,
            resamples=self.resamples,
            seed=self.seed,
            **options,
        )

    def of_reals(self, outputs: Outputs, targets: Array, **options: Any) -> dict[str, Interval]:
        """All metrics of real predictions: of the mixture of the draws where its Gaussians are known."""
        return metrics.regression_metrics(
            outputs.mean,
            np.sqrt(outputs.total),
            targets,
            draws=outputs.components,
            losses=outputs.losses,
            scale=outputs.scale,
            df=outputs.df,
            levels=LEVELS,
            resamples=self.resamples,
            seed=self.seed,
            **options,
        )

    def few(self, outputs: Outputs, targets: Array, real: bool) -> dict[str, Interval]:
        """The brief metrics: accuracy, nll and ece, or rmse, nll and crps."""
        if real:
            return self.of_reals(outputs, targets, brief=True)
        return self.of_classes(outputs, targets, None, brief=True)

    def ood(
        self, inside: Outputs, outside: Mapping[str, Outputs], names: Sequence[str] = ()
    ) -> tuple[dict[str, OOD], Detection | None]:
        """How well each score tells each set from the test inputs, and all of them on average."""
        if not outside:
            return {}, None
        used = {name: [s for s in inside.scores if informative(s, inside, one)] for name, one in outside.items()}
        each, mean = metrics.detection_comparison(
            inside.scores,
            {name: {s: outside[name].scores[s] for s in scores} for name, scores in used.items()},
            resamples=self.resamples,
            seed=self.seed,
        )
        found = {name: _ood(inside, one, used[name], each[name], names) for name, one in outside.items()}
        return found, Detection(mean.detection, mean.behind)

    def risk_coverage(self, outputs: Outputs, targets: Array) -> dict[str, RiskCoverage]:
        """The risk-coverage curve by total and, where the draws disagree, by epistemic uncertainty."""
        real = "max_prob" not in outputs.scores
        unit = "sd" if real and target_names(outputs.mean) else "own"
        losses = _squared_errors(outputs.mean, targets) if real else outputs.mean.argmax(1) != targets
        scores = [name for name in (TOTAL[real], EPISTEMIC[real]) if informative(name, outputs)]
        kinds = dict(zip(("total", "epistemic"), scores, strict=False))
        by = {kind: np.asarray(outputs.scores[name], np.float64) for kind, name in kinds.items()}
        areas, behind = metrics.risk_areas(losses, by, root=real, resamples=self.resamples, seed=self.seed)
        found = {}
        for kind, uncertainties in by.items():
            coverage, risk = metrics.risk_coverage(losses, uncertainties, root=real)
            kept = _evenly(len(coverage))
            curve = tuple(coverage[kept].tolist()), tuple(risk[kept].tolist())
            found[kind] = RiskCoverage(*curve, areas[kind], behind.get(kind), unit)
        return found


def by_target(
    resampling: Resampling, outputs: Outputs, targets: Array, names: Sequence[str], brief: bool = False
) -> dict[str, TargetScores]:
    """The metrics of each of several real targets, by its name or its number, over the inputs where it is known.

    `brief` are the most important ones only.
    """
    found = {}
    unsure = uncertainty_by_target(outputs, names)
    for d, name in enumerate(target_names(outputs.mean, names)):
        known = ~np.isnan(targets[:, d])
        if known.any():
            scored = resampling.of_reals(_column(outputs, known, d), targets[known, d : d + 1], brief=brief)
            if outputs.losses is not None:  # of all targets together: those of one cannot be told
                del scored["nll"]
            found[name] = TargetScores(int(known.sum()), scored, unsure[name])
    return found


def uncertainty_by_target(outputs: Outputs, names: Sequence[str]) -> dict[str, Uncertainty]:
    """That of each of several real targets, by its name or its number."""
    if "max_prob" in outputs.scores:
        return {}
    every = np.ones(len(outputs.mean), dtype=bool)
    return {name: uncertainty(_column(outputs, every, d)) for d, name in enumerate(target_names(outputs.mean, names))}


def _column(outputs: Outputs, rows: Array, d: int) -> Outputs:
    """The predictions for one of several real targets, at some inputs."""
    parts = {name: getattr(outputs, name)[rows, d : d + 1] for name in ("mean", "total", "aleatoric", "epistemic")}
    draws = outputs.components
    components = None if draws is None else (draws[0][:, rows, d : d + 1], draws[1][:, rows, d : d + 1])
    return replace(outputs, **parts, scores={}, components=components, losses=None, scaled=None)


def _squared_errors(mean: Array, targets: Array) -> Array:
    """Of every input, the mean over its targets that are known (N,); of several each in units of its sd (N, D)."""
    if target_names(mean):
        sds = [column[~np.isnan(column)].std() if not np.isnan(column).all() else 0.0 for column in targets.T]
        mean, targets = (part / [sd or 1.0 for sd in sds] for part in (mean, targets))
    return metrics.regression.square_rows(mean, targets)


def _ood(inside: Outputs, outside: Outputs, used: list[str], found: metrics.Compared, names: Sequence[str] = ()) -> OOD:
    pairs = {name: (inside.scores[name], outside.scores[name]) for name in used}
    return OOD(
        len(outside.mean),
        uncertainty(outside),
        found.detection,
        {name: histogram(name, inside, outside) for name in used},
        {name: roc(*pair) for name, pair in pairs.items()},
        behind=found.behind,
        by_target=uncertainty_by_target(outside, names),
    )


def informative(name: str, *sets: Outputs) -> bool:
    """Whether a score, if it is one of the draws' disagreement, is more than rounding."""
    if name not in EPISTEMIC:
        return True
    largest = max(float(one.scores[name].max()) for one in sets)
    least = (
        RESOLVED if name == "mutual_information" else RESOLVED * max(float(one.scores["total"].max()) for one in sets)
    )
    return all(one.draws > 1 for one in sets) and largest > least


def uncertainty(outputs: Outputs) -> Uncertainty:
    """Means over inputs (and outputs); of the variances of real targets their roots."""
    parts = (outputs.total, outputs.aleatoric, outputs.epistemic)
    means = [float(part.astype(np.float64).mean()) for part in parts]
    return Uncertainty(*(means if "max_prob" in outputs.scores else map(math.sqrt, means)))


def best_temperature(outputs: Outputs, labels: Array) -> float:
    """The temperature that makes these probabilities fit best."""
    with np.errstate(divide="ignore"):
        return metrics.temperature_scaling(np.log(outputs.mean.astype(np.float64)), labels)


def selective(outputs: Outputs, labels: Array) -> Selective:
    """The accuracy-coverage curve at `POINTS` places at most, full coverage included."""
    coverage, accuracy = metrics.accuracy_coverage(outputs.mean, labels)
    kept = _evenly(len(coverage))
    return Selective(tuple(coverage[kept].tolist()), tuple(accuracy[kept].tolist()))


def _evenly(n: int) -> Array:
    """Indices of at most `POINTS` of n places, the last among them."""
    return np.arange(n) if n <= POINTS else np.ceil(n * np.arange(1, POINTS + 1) / POINTS).astype(np.intp) - 1


def reliability(outputs: Outputs, labels: Array, bins: int) -> Reliability:
    """The calibration curve of the most probable class."""
    curve = calibration_curve(outputs.mean, labels, bins)
    return Reliability(*(tuple(float(v) if np.isfinite(v) else math.nan for v in part) for part in curve))


def class_labels(outputs: Outputs, y: Tensor, classes: tuple[str, ...]) -> Array:
    """Labels (N,), after a check that the network has an output for every class."""
    width = outputs.mean.shape[1]
    if classes and width != len(classes):
        raise ValueError(f"the network has {width} outputs, the data {len(classes)} classes: they must be equal")
    labels = as_array(y)
    return labels.reshape(-1) if labels.shape == (len(labels), 1) and width == 2 else labels


def own_targets(outputs: Outputs, y: Tensor, target: TargetScale | None) -> Array:
    """Targets in their own units, after a check that they fit the predictions; of several some may be missing, NaN."""
    if tuple(y.shape) != outputs.mean.shape:
        fits = y.numel() == outputs.mean.size
        hint = f"; use y.reshape{outputs.mean.shape}" if fits else ""
        raise ValueError(f"targets have shape {tuple(y.shape)}, the network predicts {outputs.mean.shape}{hint}")
    unknown = int(y.reshape(len(y), -1).isnan().all(1).sum())
    if unknown:
        raise ValueError(f"{unknown} of {len(y)} inputs have no target, it is NaN: leave them out before evaluating")
    return as_array(y.double() if target is None else target.own_units(y.double()))


def histogram(name: str, inside: Outputs, outside: Outputs) -> Histogram:
    """Counts of the score `name` over its whole range: that of the definition for classes, else what was seen."""
    both = [np.asarray(one.scores[name], np.float64) for one in (inside, outside)]
    classes = inside.mean.shape[1] if "max_prob" in inside.scores else 0
    seen = max(float(part.max()) for part in both)
    highest = {"max_prob": 1 - 1 / max(classes, 1), "entropy": math.log(max(classes, 1))}.get(name, seen)
    highest = max(highest, seen) or 1.0
    edges = np.linspace(0.0, highest, BINS + 1)
    counts = [np.histogram(part.clip(0.0, highest), edges)[0] for part in both]
    return Histogram(tuple(edges.tolist()), *(tuple(one.tolist()) for one in counts))


def roc(scores_in: Array, scores_out: Array) -> ROC:
    """Shares of both sets with a score at or above every threshold; inputs of equal score share one.

    >>> import numpy as np
    >>> roc(np.array([0.0, 0.5]), np.array([0.5, 1.0]))
    ROC(false_positive=(0.0, 0.0, 0.5, 1.0), true_positive=(0.0, 0.5, 1.0, 1.0))
    """
    inside, outside = (np.sort(np.asarray(part, np.float64)) for part in (scores_in, scores_out))
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    shares = [np.concatenate([[0.0], 1 - np.searchsorted(part, levels) / len(part)]) for part in (inside, outside)]
    kept = _kept(*shares)
    return ROC(*(tuple(part[kept].tolist()) for part in shares))


def _kept(false_positive: Array, true_positive: Array) -> Array:
    """Indices of at most `POINTS` points, evenly along the curve, its ends among them."""
    n = len(false_positive)
    if n <= POINTS:
        return np.arange(n)
    length = false_positive + true_positive  # both rise: the distance walked along the axes
    return np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], POINTS)).clip(0, n - 1))
