"""What the summary of a run says about single classes."""

from __future__ import annotations

import textwrap
from typing import Any

from bnn.data.dataset import Data
from bnn.evaluation.classes import classes_of, never_said
from bnn.evaluation.predictor import Array, Outputs
from bnn.metrics.per_class import balanced_accuracy

FEW = 8  # classes whose weights a line names
WIDTH = 100  # of a line
INDENT = 12 * " "  # of what stands below the first line of an entry


def class_results(outputs: Outputs, labels: Array, data: Data, likelihood: Any, scored: str) -> dict[str, Any]:
    """Balanced accuracy where classes are unequal, the weights of classes, and which is never predicted, as JSON."""
    found = classes_of(outputs.mean, labels, data.classes, likelihood)
    names = [one.name for one in found.results]
    return {
        "balanced_accuracy": balanced_accuracy(outputs.mean, labels) if found.unequal else None,
        "class_weights": dict(zip(names, found.weights, strict=True)) if found.weights else None,
        "never_predicted": [one.name for one in found.never_predicted],
        "never": never_said(found, f"{scored} inputs"),
    }


def weight_lines(weights: dict[str, float] | None) -> list[str]:
    """How much each class counted in training, and what that does to probabilities."""
    if not weights:
        return []
    named = ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())
    if len(weights) > FEW:
        named = f"{min(weights.values()):.3g} to {max(weights.values()):.3g}"
    text = f"{named}: probabilities are those of reweighted classes, which calibrating does not undo"
    return textwrap.wrap(text, WIDTH, initial_indent=f"{'weights':<12}", subsequent_indent=INDENT)


def never_lines(text: str | None) -> list[str]:
    """The sentence about classes that are never predicted."""
    return [] if text is None else textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
