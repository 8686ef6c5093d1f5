"""`Guarantee`: the scores of rows that were set aside, as data, and the intervals or sets that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnn._common.checks import check_choice, whole
from bnn._common.records import stored_fields, stored_number
from bnn._common.text import nearest
from bnn.conformal.class_scores import Aps, ClassScore, Lac, Raps, class_probabilities
from bnn.conformal.ranks import rank, thresholds
from bnn.conformal.real_scores import Normalized, Quantile, Reals, RealScore
from bnn.metrics.checks import Floats

METHODS: dict[str, type[RealScore] | type[ClassScore]] = {
    one.name: one for one in (Normalized, Quantile, Lac, Aps, Raps)
}
SCALES = ["linear", "log"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Guarantee:
    """The scores of calibration rows, and with them intervals or sets at any level that there are enough rows for.

    What is guaranteed, and under which assumptions, is said in `bnn.conformal`. `calibrate` makes one.

    Args:
        score: how a target is scored.
        scores: of the calibration rows, ascending: a tuple for every target, or for every class where made `by_class`,
            else one for all classes.
        shape: of the targets of one row; of classes (C,).
        by_class: whether the guarantee holds within every class.
        scale: "log" where predictions are of the logarithm of the target.
    """

    score: RealScore | ClassScore
    scores: tuple[tuple[float, ...], ...]
    shape: tuple[int, ...]
    by_class: bool = False
    scale: str = "linear"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)
        groups = math.prod(self.shape) if isinstance(self.score, RealScore) or self.by_class else 1
        if len(self.scores) != groups:
            raise ValueError(
                f"a guarantee for the shape {self.shape} has {groups} groups of scores; got {len(self.scores)}"
            )
        if any(list(group) != sorted(group) for group in self.scores):
            raise ValueError("the scores of a guarantee must be ascending")

    @property
    def method(self) -> str:
        """The method, by its name."""
        return self.score.name

    @property
    def rows(self) -> int:
        """How many calibration rows stand behind it; of several targets or classes, behind that with the fewest."""
        return min(map(len, self.scores))

    def intervals(self, prediction: Any, level: float = 0.9, *, names: Sequence[str] = ()) -> tuple[Floats, Floats]:
        """Lower and upper ends, of the shape (N, ...) of the predicted means, that hold a new target with P >= level.

        Args:
            prediction: of new rows, in a form that `calibrate` takes, made as that of the calibration rows was.
            level: the probability, for every target by itself.
            names: what the error calls several targets; by default "target 0" and so on.

        Raises:
            ValueError: there are too few calibration rows for the level; or this is a guarantee of classes.
        """
        if not isinstance(self.score, RealScore):
            raise ValueError("this is a guarantee of classes, without intervals: use .sets(prediction, level)")
        predicted = Reals.of(prediction)
        if predicted.shape != self.shape:
            raise ValueError(f"it was calibrated for targets of shape {self.shape}; got those of {predicted.shape}")
        several = list(names) or [f"target {i}" for i in range(len(self.scores))]
        of = thresholds(self.scores, level, several if len(self.scores) > 1 else [""])
        ends = self.score.interval(predicted, np.array(of))
        lower, upper = (end.reshape(len(end), *self.shape) for end in ends)
        if self.scale == "linear":
            return lower, upper
        with np.errstate(over="ignore"):  # beyond the largest number: no upper end
            return np.exp(lower), np.exp(upper)

    def sets(self, prediction: Any, level: float = 0.9, *, generator: torch.Generator | None = None) -> Bools:
        """Which classes are in the set of each row, (N, C): it holds a new row's class with P >= level.

        Args:
            prediction: of new rows, in a form that `calibrate` takes, made as that of the calibration rows was.
            level: the probability; made `by_class`, within every class.
            generator: makes randomised sets repeatable.

        Raises:
            ValueError: there are too few calibration rows for the level, in all or of a class; or this is a guarantee
                of real targets.
        """
        if not isinstance(self.score, ClassScore):
            raise ValueError("this is a guarantee of real targets, without sets: use .intervals(prediction, level)")
        probs = class_probabilities(prediction)
        if probs.shape[1:] != self.shape:
            raise ValueError(f"it was calibrated for {self.shape[0]} classes; got probabilities of {probs.shape[1]}")
        names = [f"class {c}" for c in range(len(self.scores))] if self.by_class else [""]
        limits = np.array(thresholds(self.scores, level, names))
        return np.asarray(self.score.of(probs, self.score.uniforms(len(probs), generator)) <= limits)

    def statement(self, level: float = 0.9) -> str:
        """What is guaranteed at this level, and what it is worth with so many rows, in a sentence.

        Coverage of new rows given the n at hand is Beta(k, n + 1 - k), k = ceil((n + 1) level), without ties.
        """
        n = self.rows
        thresholds(self.scores, level, ["" for _ in self.scores])  # or says how many rows it takes
        k = rank(n, level)
        spread = math.sqrt(k * (n + 1 - k) / (n + 2)) / (n + 1)
        what = "interval" if isinstance(self.score, RealScore) else "set of classes"
        each = (
            ", within every class" if self.by_class else ", for each target by itself" if len(self.scores) > 1 else ""
        )
        return (
            f"with {n:,} inputs set aside, a new one from the same source is in its {100 * level:g} % {what} with a "
            f"probability of at least {100 * level:g} %{each}, on average over such sets of {n:,}; with these coverage "
            f"varies about it by {100 * spread:.1f} points (one sd)"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `from_dict` reads it back, with the same intervals and sets at every level."""
        return {
            "method": self.method,
            "options": asdict(self.score),
            "shape": list(self.shape),
            "by_class": self.by_class,
            "scale": self.scale,
            "scores": [list(group) for group in self.scores],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Guarantee:
        """What `to_dict` gave; ValueError or TypeError for anything else."""
        kinds = {"method": str, "options": dict, "shape": list, "by_class": bool, "scale": str, "scores": list}
        found = stored_fields(stored, "guarantee", **kinds)
        scores = tuple(tuple(stored_number(s, "a score of a guarantee") for s in group) for group in found["scores"])
        score = METHODS[known_method(found["method"])].parse(found["method"], found["options"])
        shape = tuple(whole("a size in the shape of a guarantee", size) for size in found["shape"])
        return cls(score, scores, shape, found["by_class"], found["scale"])


def known_method(method: str) -> str:
    """The name, if there is such a method."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}{nearest(method, METHODS)}; expected one of {list(METHODS)}")
    return method
