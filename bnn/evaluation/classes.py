"""Class by class: what is measured, the table of it, and a sentence where a class is never predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bnn.evaluation.pieces import Classes, ClassResult, Mistake
from bnn.evaluation.predictor import Array
from bnn.likelihoods.base import about
from bnn.metrics.per_class import confusion_matrix, of_confusion

MATRIX, MISTAKES = 100, 20  # classes whose matrix is kept, and mistakes that are
FEW, WORST = 12, 8  # classes of which a table has all, and how many it has of more
NAMED = 3  # classes that a sentence names
WEIGHTS = '--class-weights balanced (class_weights="balanced" in Python)'


def classes_of(probs: Array, labels: Array, names: Sequence[str], likelihood: Any = None) -> Classes:
    """Everything that is known about each class.

    Args:
        probs: (N, C).
        labels: (N,).
        names: of the C classes; empty where they have none.
        likelihood: that of training.
    """
    matrix = confusion_matrix(probs, labels)
    named = tuple(names) or tuple(map(str, range(len(matrix))))
    found = of_confusion(matrix)
    given = probs.astype(np.float64).mean(axis=0)
    columns = zip(named, found.support, found.predicted, given, found.precision, found.recall, found.f1, strict=True)
    results = tuple(
        ClassResult(name, int(inputs), int(predicted), *map(_number, shares))
        for name, inputs, predicted, *shares in columns
    )
    kept = tuple(map(tuple, matrix.tolist())) if len(matrix) <= MATRIX else ()
    return Classes(results, kept, _mistakes(matrix, named), weights_of(likelihood))


def weights_of(likelihood: Any) -> tuple[float, ...]:
    """The class weights of a likelihood (C,); empty where it has none, or where they are all the same."""
    found = tuple(about(likelihood).options().get("class_weights") or ())
    return found if len(set(found)) > 1 else ()


def _number(value: float) -> float:
    return float(value) if np.isfinite(value) else math.nan


def _mistakes(matrix: Array, names: Sequence[str]) -> tuple[Mistake, ...]:
    """The largest counts beside the diagonal."""
    wrong = matrix - np.diag(matrix.diagonal())
    support = matrix.sum(axis=1)
    largest = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    pairs = [divmod(int(place), len(names)) for place in largest]
    return tuple(
        Mistake(names[i], names[j], int(wrong[i, j]), float(wrong[i, j] / support[i])) for i, j in pairs if wrong[i, j]
    )


def shown_results(found: Classes, few: int = FEW, worst: int = WORST) -> tuple[ClassResult, ...]:
    """All classes, or of many those that are found least often."""
    if len(found.results) <= few:
        return found.results
    there = [one for one in found.results if one.inputs]
    return tuple(sorted(there, key=lambda one: (one.recall, -one.inputs))[:worst])


def class_rows(found: Classes, results: Sequence[ClassResult]) -> list[list[str]]:
    """A table as text, its header first: how often each class is there and answered, and how well."""
    total = sum(one.inputs for one in found.results)
    header = ["class", "inputs", "share", "mean probability", "predicted", "precision", "recall", "F1"]
    return [header, *(_row(one, total) for one in results)]


def _row(one: ClassResult, total: int) -> list[str]:
    shares = [one.inputs / total, one.probability, None, one.precision, one.recall, one.f1]
    texts = ["-" if share is None or math.isnan(share) else percent(share) for share in shares]
    return [one.name, f"{one.inputs:,}", texts[0], texts[1], f"{one.predicted:,}", *texts[3:]]


def percent(share: float) -> str:
    """A share as text, which is 0 or 1 only where it is.

    >>> percent(0.1043), percent(0.0001), percent(0.9999), percent(1.0)
    ('10.4 %', '< 0.1 %', '> 99.9 %', '100.0 %')
    """
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return "> 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.1f} %"


def said(found: Classes, inputs: str = "test inputs") -> list[str]:
    """Sentences about classes: those that are never predicted, and what weights do to probabilities."""
    return [one for one in (never_said(found, inputs), weights_said(found)) if one is not None]


def weights_said(found: Classes) -> str | None:
    """What class weights in training do to probabilities; None where there were none."""
    if not found.weights:
        return None
    weight, one = max(zip(found.weights, found.results, strict=True), key=lambda pair: pair[0])
    return (
        f"trained with class weights (the largest is {weight:.3g}, of '{one.name}'): probabilities are those of "
        "reweighted classes, which no temperature undoes; all scores are of the data as they are"
    )


def never_said(found: Classes, inputs: str = "test inputs", advice: bool = True) -> str | None:
    """A sentence about classes that no input is answered with; None where there are none.

    Args:
        found: of the inputs.
        inputs: what these are called.
        advice: whether it says what to do.
    """
    missed = found.never_predicted
    if not missed:
        return None
    total = sum(one.inputs for one in found.results)
    named = [f"'{one.name}' ({_brief(one.inputs / total)} of the {inputs})" for one in missed[:NAMED]]
    more = len(missed) - len(named)
    named += [f"{more:,} more class{'es' if more > 1 else ''}"] if more else []
    text = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    one = len(missed) == 1
    never = f"{text} {'is' if one else 'are'} never predicted"
    if not advice:
        return never
    weights = f"larger class weights for {'it' if one else 'them'}" if found.weights else WEIGHTS
    return (
        f"{never}: train with {weights}, or decide by a lower threshold on {'its' if one else 'their'} probability "
        "(predict --probs)"
    )


def _brief(share: float) -> str:
    """As people say it: 10 %, 0.4 %."""
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"
