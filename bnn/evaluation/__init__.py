"""Evaluation: everything that is known about a network on a data set, as one data structure."""

from bnn.evaluation.pieces import (
    OOD,
    Corrupted,
    LayerPosterior,
    Posterior,
    Reliability,
    Scale,
    Selective,
    Severity,
    Size,
    Uncertainty,
)
from bnn.evaluation.result import Evaluation
from bnn.evaluation.run import evaluate

__all__ = [
    "OOD",
    "Corrupted",
    "Evaluation",
    "LayerPosterior",
    "Posterior",
    "Reliability",
    "Scale",
    "Selective",
    "Severity",
    "Size",
    "Uncertainty",
    "evaluate",
]
