"""Abstaining: inputs whose uncertainty is above a threshold get no answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnn.cli.mistakes import Mistake
from bnn.evaluation.predictor import Array, Outputs

ABSTAIN = "abstain"
KINDS = ("total", "aleatoric", "epistemic")


@dataclass(frozen=True)
class Rule:
    """Answer where the uncertainty is at most the threshold.

    Args:
        by: which uncertainty, one of KINDS.
        thresholds: one for all targets, or one each; in nats, or standard deviations in the target's own units.
        validation: what the validation data say about it, where they set it.
    """

    by: str
    thresholds: tuple[float, ...]
    validation: dict[str, Any] | None = None

    def abstains(self, values: Array) -> Array:
        """Whether there is no answer (N, D), for the uncertainties (N, D) of D targets."""
        return np.asarray(values > np.asarray(self.thresholds))

    @property
    def threshold(self) -> float | list[float]:
        """As JSON."""
        return self.thresholds[0] if len(self.thresholds) == 1 else list(self.thresholds)


def uncertainty(outputs: Outputs, by: str, task: str) -> Array:
    """The uncertainty (N, D) of D targets: nats of classes (D = 1), standard deviations of real targets."""
    values = np.asarray(getattr(outputs, by), dtype=np.float64).reshape(len(outputs.total), -1)
    return values if task == "classification" else np.sqrt(values)


def check_thresholds(abstain_above: float | None, coverage: float | None) -> None:
    """A mistake for numbers that are no threshold, or no share."""
    if abstain_above is not None and not 0 <= abstain_above < math.inf:
        raise Mistake(f"--abstain-above is the largest uncertainty to answer with, 0 or more; got {abstain_above:g}")
    if coverage is not None and not 0 < coverage <= 1:
        raise Mistake(f"--coverage is the share of inputs to answer, above 0 and at most 1, as 0.9; got {coverage:g}")


def above(value: float, by: str, task: str, classes: int) -> tuple[Rule, str]:
    """The rule with a threshold that is given, and a note if it can never abstain."""
    note = ""
    if task == "classification" and value >= math.log(classes):
        note = f"no uncertainty of {classes} classes is above {math.log(classes):.4g} nats, so nothing is left out"
    return Rule(by, (float(value),)), note


def smallest_threshold(values: Array, coverage: float) -> float:
    """The smallest threshold that answers at least a share `coverage` of inputs with the uncertainties `values` (N,).

    It is the k-th smallest value, with the smallest k such that k / N >= coverage; ties answer more.

    >>> smallest_threshold(np.array([0.4, 0.1, 0.3, 0.2]), 0.7)
    0.3
    """
    shares = np.arange(1, len(values) + 1) / len(values)
    return float(np.sort(values)[np.searchsorted(shares, coverage)])
