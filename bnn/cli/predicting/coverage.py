"""`--coverage`: the threshold that answers a given share of the run's validation data."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bnn import likelihoods
from bnn.cli.console import say
from bnn.cli.mistakes import USERS, Mistake, described
from bnn.cli.predicting.abstain import Rule, smallest_threshold
from bnn.cli.validation import FILE, Validation, read_validation, write_validation
from bnn.evaluation.predictor import Array
from bnn.train.build import build_data
from bnn.train.outcome import Outcome


def covering(folder: str, run: Outcome, coverage: float, by: str, samples: int | None) -> Rule:
    """The rule with the smallest threshold that answers at least a share `coverage` of the validation inputs.

    Args:
        folder: of the run; where it has no validation.json, that is made from the recipe's data.
        by: which uncertainty, total, aleatoric or epistemic.
        samples: draws of predictions that are made anew; None is the usual number.
    """
    found = _validation(folder, run, samples)
    values = np.asarray(getattr(found, by), dtype=np.float64)
    columns = values.reshape(len(values), -1)  # (N, D)
    targets = _targets(run)
    if columns.shape[1] != targets:
        raise Mistake(
            f"{os.path.join(folder, FILE)} has {columns.shape[1]} uncertainties per input, and the run predicts "
            f"{targets} targets; give a threshold of your own: --abstain-above"
        )
    thresholds = tuple(smallest_threshold(column, coverage) for column in columns.T)
    return Rule(by, thresholds, _about(columns, thresholds, found))


def stated(rule: Rule) -> str:
    """What a rule means for the validation data, in one line for each target."""
    assert rule.validation is not None
    return "\n".join(_line(one, rule.validation["inputs"]) for one in rule.validation["targets"])


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


def _targets(run: Outcome) -> int:
    """How many uncertainties a prediction has."""
    if run.task == "classification":
        return 1
    return run.out_features // likelihoods.about(run.likelihood).outputs_per_target


def _rms(values: Array) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _validation(folder: str, run: Outcome, samples: int | None) -> Validation:
    """Predictions on the validation data as stored, or made from the recipe's data."""
    if os.path.exists(os.path.join(folder, FILE)):
        return read_validation(folder)
    say(f"{folder} has no {FILE}: predicting the validation data of its recipe")
    try:
        write_validation(folder, run, _data(run), samples)
        return read_validation(folder)
    except (Mistake, *USERS) as error:
        raise Mistake(
            f"--coverage needs the run's validation data, and they are not at hand: {described(error)}; give a "
            "threshold of your own with --abstain-above"
        ) from error


def _data(run: Outcome) -> Any:
    """The data that the run was trained on, if they have a validation part and are still the same."""
    assert run.recipe is not None
    data = build_data(run.recipe.data)
    if data.validation is None:
        raise Mistake("the run was trained without validation data")
    if data.classes != run.classes or data.target != run.target or _stored(data) != _stored(run):
        raise Mistake("the data have changed since the run was trained")
    return data


def _stored(one: Any) -> Any:
    return None if one.preparation is None else one.preparation.to_dict()
