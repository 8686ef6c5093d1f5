"""`calibrate`: from what was predicted for rows that were set aside, and their targets, to a `Guarantee`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bnn._common.checks import check_bool, check_choice
from bnn.conformal.class_scores import ClassScore, class_probabilities
from bnn.conformal.guarantee import METHODS, SCALES, Guarantee, known_method
from bnn.conformal.real_scores import Reals, RealScore, is_real
from bnn.metrics.checks import Floats, class_labels


def calibrate(
    prediction: Any,
    targets: Any,
    method: str | None = None,
    *,
    by_class: bool = False,
    scale: str = "linear",
    generator: torch.Generator | None = None,
    **options: Any,
) -> Guarantee:
    """A `Guarantee` from what was predicted for rows that nothing else has seen, and their targets.

    What is guaranteed, and under which assumptions, is said in `bnn.conformal`.

    Args:
        prediction: what `bnn.predict` gives for the N rows. For real targets also a pair of the draws' means and sds,
            both (K, N, ...), as `likelihood.components(prediction.samples)` gives; for classes also probabilities
            (N, C).
        targets: (N, ...) real numbers, NaN where one is missing, so that this row does not count for this target; or
            (N,) class indices.
        method: for real targets "normalized" (the default) or "quantile", which needs the draws; for classes "lac" (the
            default), "aps" or "raps". `bnn.conformal.real_scores` and `class_scores` have their formulas.
        by_class: of classes: a guarantee within every class, from its own rows, of which each class needs enough for
            the level. A class with fewer is an error, as it would have to be in every set.
        scale: "log" where the prediction is of the logarithm of positive targets: targets are given, and intervals
            come, in their own units. A guarantee holds on every scale that has the same order.
        generator: makes the randomised scores of "aps" and "raps" repeatable.
        options: of the method: `base` of "quantile"; `randomized` of "aps"; `lamda`, `k_reg`, `randomized` of "raps".

    >>> probs = torch.tensor([[0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    >>> guarantee = calibrate(probs, torch.tensor([0, 0, 0]))  # scores 0.2, 0.3, 0.6
    >>> guarantee.sets([[0.55, 0.45], [0.25, 0.75]], level=0.5)  # the second of them: classes of 0.7 and more
    array([[False, False],
           [False,  True]])
    """
    check_bool("by_class", by_class)
    check_choice("scale", scale, SCALES)
    real = is_real(prediction)
    name = ("normalized" if real else "lac") if method is None else known_method(method)
    score = METHODS[name].parse(name, options)
    if isinstance(score, RealScore):
        if by_class:
            raise ValueError(f"by_class is for classes, and the method {name!r} is for real targets; leave it out")
        return _of_reals(score, Reals.of(prediction), targets, scale)
    if scale != "linear":
        raise ValueError(f"scale is for real targets, and the method {name!r} is for classes; leave it out")
    return _of_classes(score, class_probabilities(prediction), targets, by_class, generator)


def _of_reals(score: RealScore, predicted: Reals, targets: Any, scale: str) -> Guarantee:
    y = predicted.targets(targets)
    known = ~np.isnan(y)
    if not known.any(axis=0).all():
        raise ValueError("every target needs calibration rows where it is known; one is NaN in all of them")
    if scale == "log":
        if (y[known] <= 0).any():
            raise ValueError(f"scale='log' takes targets above 0; {(y[known] <= 0).sum()} of {known.sum()} are not")
        y = np.log(y)
    found = score.of(predicted, y)
    scores = tuple(_sorted(s[k]) for s, k in zip(found.T, known.T, strict=True))
    return Guarantee(score, scores, predicted.shape, scale=scale, inputs=len(y))


def _of_classes(
    score: ClassScore, probs: Floats, targets: Any, by_class: bool, generator: torch.Generator | None
) -> Guarantee:
    y = class_labels(targets, probs.shape)
    found = score.of(probs, score.uniforms(len(probs), generator))[np.arange(len(y)), y]
    groups = [found[y == c] for c in range(probs.shape[1])] if by_class else [found]
    return Guarantee(score, tuple(map(_sorted, groups)), probs.shape[1:], by_class, inputs=len(y))


def _sorted(scores: Floats) -> tuple[float, ...]:
    return tuple(np.sort(scores).tolist())
