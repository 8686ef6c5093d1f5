"""Evaluation: everything that is known about a network on a data set, as one data structure."""

from bnn.evaluation.detection import Choice
from bnn.evaluation.evaluator import evaluate
from bnn.evaluation.pieces import (
    OOD,
    ROC,
    Corrupted,
    Coverage,
    Detection,
    Example,
    Examples,
    Guaranteed,
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
    Time,
    Uncertainty,
)
from bnn.evaluation.promise import Promise
from bnn.evaluation.result import Evaluation

__all__ = [
    "OOD",
    "ROC",
    "Choice",
    "Corrupted",
    "Coverage",
    "Detection",
    "Evaluation",
    "Example",
    "Examples",
    "Guaranteed",
    "Histogram",
    "LayerPosterior",
    "Points",
    "Posterior",
    "Promise",
    "Reliability",
    "RiskCoverage",
    "Scale",
    "Selective",
    "Severity",
    "Size",
    "Time",
    "Uncertainty",
    "evaluate",
]
