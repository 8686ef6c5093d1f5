"""`validation.json` of a run: what the network says about its validation data, so that thresholds can be chosen."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnn._common.atomic import write_atomically
from bnn.cli.draws import whole_draws_
from bnn.data.dataset import Data, Part
from bnn.evaluation.evaluator import drawn
from bnn.evaluation.predictor import Outputs, Predictor
from bnn.evaluation.scores import class_labels, own_targets
from bnn.files import FileFormatError
from bnn.train.outcome import Outcome

FILE = "validation.json"
FORMAT, VERSION = "bayesianize validation", 1
MOST = 10_000  # inputs: a threshold needs no more
BATCH, SEED = 500, 0
UNCERTAINTIES = ("total", "aleatoric", "epistemic")

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


def write_validation(folder: str | os.PathLike[str], outcome: Outcome, data: Data, samples: int | None = None) -> None:
    """Predicts the validation part of `data` and writes `folder`/validation.json; of many inputs, 10,000.

    Args:
        outcome: the finished run.
        samples: posterior draws; None: as many as `bnn.predict` takes by itself.

    Raises:
        ValueError: the data have no validation part.
    """
    if data.validation is None:
        raise ValueError(f"{data.name} has no validation part: there is nothing to choose a threshold on")
    outputs, targets = predictions(outcome, data, data.validation, samples)
    real = data.task == "regression"
    stored: dict[str, Any] = {"format": FORMAT, "version": VERSION, "samples": outputs.draws, "seed": SEED}
    stored["task"] = data.task
    for name in UNCERTAINTIES:
        values = getattr(outputs, name)
        stored[name] = _listed(np.sqrt(values) if real else values)
    stored["right"] = None if real else _listed(outputs.mean.argmax(1) == targets)
    stored["error"] = _listed(np.abs(targets - outputs.mean)) if real else None
    write_atomically(json.dumps(stored, allow_nan=False).encode(), os.path.join(folder, FILE))


def predictions(outcome: Outcome, data: Data, part: Part, samples: int | None = None) -> tuple[Outputs, Array]:
    """What the network says about (at most 10,000 inputs of) a part, and the targets; real ones in their own units."""
    if len(part) > MOST:
        part = part.subset(torch.arange(MOST) * len(part) // MOST)
    assert part.y is not None
    samples = drawn(outcome.net, samples)
    whole_draws_(outcome.net)
    outputs = Predictor(outcome.net, outcome.likelihood, samples, BATCH, SEED, data.target)(part, what="validation")
    real = data.task == "regression"
    return outputs, own_targets(outputs, part.y, data.target) if real else class_labels(outputs, part.y, data.classes)


def read_validation(folder: str | os.PathLike[str]) -> Validation:
    """What `write_validation` wrote.

    Raises:
        FileNotFoundError: the run has no such file.
        FileFormatError: it is damaged, foreign or of a newer version.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{os.fspath(folder)} has no {FILE}: `bayesianize train` writes it where the data have a validation part, "
            "as with --validation 0.1"
        )
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        return _checked(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {_reason(error)}; train the run again to write it") from error


def _checked(stored: Any) -> Validation:
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError(f"expected an object whose format is {FORMAT!r}")
    if stored["version"] != VERSION:
        raise ValueError(f"it has version {stored['version']!r}, this one reads {VERSION}")
    total, aleatoric, epistemic = (_array(name, stored[name]) for name in UNCERTAINTIES)
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


def _listed(values: Array) -> list[Any]:
    """(N, 1) becomes (N,)."""
    return list((values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values).tolist())


def _reason(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
