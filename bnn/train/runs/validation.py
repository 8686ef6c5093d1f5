"""What a network says about its validation data, so that thresholds can be chosen: `validation.json` of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bnn.data.dataset import Data, Part
from bnn.evaluation.evaluator import drawn
from bnn.evaluation.predictor import Outputs, Predictor
from bnn.evaluation.scores import class_labels, own_targets
from bnn.files import FileFormatError
from bnn.train.runs.options import KINDS
from bnn.train.step import Sampling

FORMAT, VERSION = "bayesianize validation", 1
MOST = 10_000  # inputs: a threshold needs no more
BATCH, SEED = 500, 0

Array = NDArray[Any]


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
        error: |y - mean| of real targets, shaped as `total`; None for classes.
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
            stored[name] = None if values is None else values.tolist()
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
    outcome = _array(kind, stored[kind])
    if len(outcome) == 0 or any(len(one) != len(outcome) for one in (total, aleatoric, epistemic)):
        raise ValueError("its lists must be equally long, and not empty")
    right, error = (None, outcome) if kind == "error" else (outcome.astype(bool), None)
    about = (int(stored["samples"]), int(stored["seed"]), str(stored["task"]))
    return Validation(*about, total, aleatoric, epistemic, right, error)


def _array(name: str, values: Any) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or not all(map(math.isfinite, array.flat)):
        raise ValueError(f"{name} must be a list of finite numbers")
    return array


def _flat(values: Array) -> Array:
    """(N, 1) becomes (N,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
