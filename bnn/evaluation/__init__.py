"""Evaluation: everything that is known about a network on a data set, as one data structure."""

from bnn.evaluation.detection import Choice
from bnn.evaluation.evaluator import evaluate
from bnn.evaluation.pieces import (
    OOD,
    ROC,
    Corrupted,
    Detection,
    Example,
    Examples,
    Histogram,
    LayerPosterior,
    Points,
    Posterior,
    Reliability,
    RiskCoverage,
    Scale,
    Selective,
    Severity,
    Size,
    TargetScores,
    Time,
    Uncertainty,
)
from bnn.evaluation.result import Evaluation

__all__ = [
    "OOD",
    "ROC",
    "Choice",
    "Corrupted",
    "Detection",
    "Evaluation",
    "Example",
    "Examples",
    "Histogram",
    "LayerPosterior",
    "Points",
    "Posterior",
    "Reliability",
    "RiskCoverage",
    "Scale",
    "Selective",
    "Severity",
    "Size",
    "TargetScores",
    "Time",
    "Uncertainty",
    "evaluate",
]
