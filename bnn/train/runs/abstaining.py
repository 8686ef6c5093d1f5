"""Abstaining above a threshold, and the predictions for validation data, `validation.json`, by which one is chosen."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bnn._common.errors import OptionError
from bnn._common.records import encoded
from bnn.data.dataset import Data, Part
from bnn.evaluation.evaluator import drawn
from bnn.evaluation.predictor import Array, Outputs, Predictor
from bnn.evaluation.scores import RESOLVED, class_labels, own_targets
from bnn.files import FileFormatError
from bnn.train.runs.folder import VALIDATION
from bnn.train.step import Sampling

ABSTAIN = "abstain"
KINDS = ("total", "aleatoric", "epistemic")  # of uncertainty
FORMAT, VERSION = "bayesianize validation", 1
MOST = 10_000  # inputs: a threshold needs no more
BATCH, SEED = 500, 0


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
    scale = 1.0 if found.error is None else float(np.max(found.total))  # nats, or a share of the standard deviation
    if by == "epistemic" and not columns.max() > RESOLVED * scale:
        raise OptionError(
            "{by}: the run's draws agree on all validation inputs up to rounding, so no threshold tells them apart; "
            "abstain by the total",
            by=by,
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
    known = values[~np.isnan(values)]
    return float(np.sqrt(np.square(known).mean())) if len(known) else math.nan


@dataclass(frozen=True)
class Validation:
    """Predictions on N validation inputs.

    Args:
        samples: posterior draws.
        seed: of the draws.
        task: "classification" or "regression".
        total, aleatoric, epistemic: in nats (N,); of real targets standard deviations in the target's own units, (N,),
            or (N, D) where there are several.
        right: whether the most probable class is the true one (N,); None for real targets.
        error: |y - mean| of real targets, shaped as `total`, NaN where one of several is missing; None for classes.
    """

    samples: int
    seed: int
    task: str
    total: Array
    aleatoric: Array
    epistemic: Array
    right: Array | None = None
    error: Array | None = None

    @classmethod
    def of(cls, network: nn.Module, likelihood: Any, data: Data, samples: int | None = None) -> Validation:
        """Predictions on the validation part of `data`; of many inputs, 10,000.

        Args:
            samples: posterior draws; None: as many as `bnn.predict` takes by default.

        Raises:
            ValueError: the data have no validation part.
        """
        if data.validation is None:
            raise ValueError(f"{data.name} has no validation part: there is nothing to choose a threshold on")
        outputs, targets = predictions(network, likelihood, data, data.validation, samples)
        about = (outputs.draws, SEED, data.task)
        total, aleatoric, epistemic = (getattr(outputs, kind) for kind in KINDS)
        if data.task == "classification":
            return cls(*about, total, aleatoric, epistemic, right=outputs.mean.argmax(1) == targets)
        total, aleatoric, epistemic = (_flat(np.sqrt(one)) for one in (total, aleatoric, epistemic))
        return cls(*about, total, aleatoric, epistemic, error=_flat(np.abs(targets - outputs.mean)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        stored: dict[str, Any] = {"format": FORMAT, "version": VERSION, "samples": self.samples, "seed": self.seed}
        stored["task"] = self.task
        for name in (*KINDS, "right", "error"):
            values = getattr(self, name)
            stored[name] = None if values is None else encoded(values.tolist())
        return stored

    @classmethod
    def from_dict(cls, stored: dict[str, Any], path: str = "validation.json") -> Validation:
        """As `to_dict` stored it; FileFormatError, naming `path`, if it is damaged, foreign or of a newer version."""
        try:
            return _checked(stored)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise FileFormatError(f"{path} cannot be read: {reason}; delete it, and it is written again") from error


def predictions(
    network: nn.Module, likelihood: Any, data: Data, part: Part, samples: int | None = None
) -> tuple[Outputs, Array]:
    """What the network says about (at most 10,000 inputs of) a part, and the targets; real ones in their own units.

    Every draw is one function of all inputs, as in `Run.predict`.
    """
    if len(part) > MOST:
        part = part.subset(torch.arange(MOST) * len(part) // MOST)
    assert part.y is not None
    predictor = Predictor(network, likelihood, drawn(network, samples), BATCH, SEED, data.target)
    with Sampling(network, "weight").in_force():
        outputs = predictor(part, what="validation")
    real = data.task == "regression"
    return outputs, own_targets(outputs, part.y, data.target) if real else class_labels(outputs, part.y, data.classes)


def _checked(stored: dict[str, Any]) -> Validation:
    if stored.get("format") != FORMAT:
        raise ValueError(f"expected an object whose format is {FORMAT!r}")
    if stored["version"] != VERSION:
        raise ValueError(f"it has version {stored['version']!r}, this one reads {VERSION}")
    total, aleatoric, epistemic = (_array(name, stored[name]) for name in KINDS)
    kind = "error" if stored["task"] == "regression" else "right"
    outcome = _array(kind, stored[kind], holes=kind == "error")
    if len(outcome) == 0 or any(len(one) != len(outcome) for one in (total, aleatoric, epistemic)):
        raise ValueError("its lists must be equally long, and not empty")
    right, error = (None, outcome) if kind == "error" else (outcome.astype(bool), None)
    about = (int(stored["samples"]), int(stored["seed"]), str(stored["task"]))
    return Validation(*about, total, aleatoric, epistemic, right, error)


def _array(name: str, values: Any, holes: bool = False) -> Array:
    """Numbers (N,) or (N, D); with `holes` some of several may be None, which becomes NaN."""
    array = np.asarray(values, dtype=np.float64)
    missing = holes and array.ndim == 2
    if array.ndim not in (1, 2) or not all(math.isfinite(one) or (missing and math.isnan(one)) for one in array.flat):
        raise ValueError(f"{name} must be a list of finite numbers")
    return array


def _flat(values: Array) -> Array:
    """(N, 1) becomes (N,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
