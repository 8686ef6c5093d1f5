"""Abstaining: inputs whose uncertainty is above a threshold get no answer."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnn._common.errors import OptionError
from bnn.evaluation.predictor import Array, Outputs
from bnn.train.runs.folder import VALIDATION
from bnn.train.runs.validation import Validation

ABSTAIN = "abstain"


@dataclass(frozen=True)
class Rule:
    """Answer where the uncertainty is at most the threshold.

    Args:
        by: which uncertainty: total, aleatoric or epistemic.
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

    @property
    def stated(self) -> str:
        """What it means for the validation data that set it, in one line for each target."""
        assert self.validation is not None
        return "\n".join(_line(one, self.validation["inputs"]) for one in self.validation["targets"])


def uncertainty(outputs: Outputs, by: str, task: str) -> Array:
    """The uncertainty (N, D) of D targets: nats of classes (D = 1), standard deviations of real targets."""
    values = np.asarray(getattr(outputs, by), dtype=np.float64).reshape(len(outputs.total), -1)
    return values if task == "classification" else np.sqrt(values)


def above(value: float, by: str, task: str, classes: int) -> Rule:
    """The rule with a threshold that is given; a warning if it can never abstain."""
    if task == "classification" and value >= math.log(classes):
        warnings.warn(
            f"no uncertainty of {classes} classes is above {math.log(classes):.4g} nats, so nothing is left out",
            stacklevel=4,
        )
    return Rule(by, (float(value),))


def covering(found: Validation, coverage: float, by: str, targets: int) -> Rule:
    """The rule with the smallest threshold that answers at least a share `coverage` of the validation inputs.

    Args:
        found: predictions on the validation inputs.
        by: which uncertainty, total, aleatoric or epistemic.
        targets: how many uncertainties a prediction has.
    """
    values = np.asarray(getattr(found, by), dtype=np.float64)
    columns = values.reshape(len(values), -1)  # (N, D)
    if columns.shape[1] != targets:
        raise OptionError(
            f"{VALIDATION} has {columns.shape[1]} uncertainties per input, and the run predicts {targets} targets; "
            "give a threshold of your own: {abstain_above}",
            abstain_above=None,
        )
    thresholds = tuple(smallest_threshold(column, coverage) for column in columns.T)
    return Rule(by, thresholds, _about(columns, thresholds, found))


def smallest_threshold(values: Array, coverage: float) -> float:
    """The smallest threshold that answers at least a share `coverage` of inputs with the uncertainties `values` (N,).

    It is the k-th smallest value, with the smallest k such that k / N >= coverage; ties answer more.

    >>> smallest_threshold(np.array([0.4, 0.1, 0.3, 0.2]), 0.7)
    0.3
    """
    shares = np.arange(1, len(values) + 1) / len(values)
    return float(np.sort(values)[np.searchsorted(shares, coverage)])


def _line(one: dict[str, Any], inputs: int) -> str:
    line = f"threshold {one['threshold']:.6g}{' nats' if 'right' in one else ''}: answers {one['answered']:.1%} of "
    line += f"{inputs} validation inputs; "
    if "right" in one:
        return (line + f"{one['right']:.1%} of those are right, {one['right_of_all']:.1%} of all").replace("%", " %")
    return line.replace("%", " %") + f"their RMSE is {one['rmse']:.4g}, that of all {one['rmse_of_all']:.4g}"


def _about(values: Array, thresholds: tuple[float, ...], found: Validation) -> dict[str, Any]:
    """How much is answered, and how well, by target."""
    outcome = found.right if found.error is None else found.error
    outcomes = np.asarray(outcome, dtype=np.float64).reshape(len(values), -1)
    targets = []
    for column, threshold, scores in zip(values.T, thresholds, outcomes.T, strict=True):
        answered = column <= threshold
        about = {"threshold": threshold, "answered": float(answered.mean())}
        if found.error is None:
            about |= {"right": float(scores[answered].mean()), "right_of_all": float(scores.mean())}
        else:
            about |= {"rmse": _rms(scores[answered]), "rmse_of_all": _rms(scores)}
        targets.append(about)
    return {"inputs": len(values), "samples": found.samples, "targets": targets}


def _rms(values: Array) -> float:
    return float(np.sqrt(np.square(values).mean()))
