"""Evaluation: everything that is known about a network on a data set, as one data structure."""

from bnn.evaluation.evaluator import evaluate
from bnn.evaluation.pieces import (
    OOD,
    ROC,
    Corrupted,
    Example,
    Examples,
    Histogram,
    LayerPosterior,
    Points,
    Posterior,
    Reliability,
    Scale,
    Selective,
    Severity,
    Size,
    Time,
    Uncertainty,
)
from bnn.evaluation.result import Evaluation

__all__ = [
    "OOD",
    "ROC",
    "Corrupted",
    "Evaluation",
    "Example",
    "Examples",
    "Histogram",
    "LayerPosterior",
    "Points",
    "Posterior",
    "Reliability",
    "Scale",
    "Selective",
    "Severity",
    "Size",
    "Time",
    "Uncertainty",
    "evaluate",
]
