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
MOST_NAMED = 6  # targets or classes that a sentence names

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
        inputs: how many calibration rows there were, in some of which some targets may be missing; None: of older
            versions, as many as the most that any target has, or of classes all.
    """

    score: RealScore | ClassScore
    scores: tuple[tuple[float, ...], ...]
    shape: tuple[int, ...]
    by_class: bool = False
    scale: str = "linear"
    inputs: int | None = None

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

    def rows_of_each(self, names: Sequence[str] = ()) -> dict[str, int]:
        """How many calibration rows stand behind each of several targets, or classes, by its name; {} of a single one.

        Args:
            names: of the targets, or classes; by default "target 0", or "class 0", and so on.
        """
        if len(self.scores) == 1:
            return {}
        return {name: len(group) for name, group in zip(self._called(names), self.scores, strict=True)}

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
        of = thresholds(self.scores, level, self._called(names))
        ends = self.score.interval(predicted, np.array(of))
        lower, upper = (end.reshape(len(end), *self.shape) for end in ends)
        if self.scale == "linear":
            return lower, upper
        with np.errstate(over="ignore"):  # beyond the largest number: no upper end
            return np.exp(lower), np.exp(upper)

    def sets(
        self,
        prediction: Any,
        level: float = 0.9,
        *,
        generator: torch.Generator | None = None,
        names: Sequence[str] = (),
    ) -> Bools:
        """Which classes are in the set of each row, (N, C): it holds a new row's class with P >= level.

        Args:
            prediction: of new rows, in a form that `calibrate` takes, made as that of the calibration rows was.
            level: the probability; made `by_class`, within every class.
            generator: makes randomised sets repeatable.
            names: what the error calls classes, where made `by_class`; by default "class 0" and so on.

        Raises:
            ValueError: there are too few calibration rows for the level, in all or of a class; or this is a guarantee
                of real targets.
        """
        if not isinstance(self.score, ClassScore):
            raise ValueError("this is a guarantee of real targets, without sets: use .intervals(prediction, level)")
        probs = class_probabilities(prediction)
        if probs.shape[1:] != self.shape:
            raise ValueError(f"it was calibrated for {self.shape[0]} classes; got probabilities of {probs.shape[1]}")
        limits = np.array(thresholds(self.scores, level, self._called(names)))
        return np.asarray(self.score.of(probs, self.score.uniforms(len(probs), generator)) <= limits)

    def statement(self, level: float = 0.9, *, names: Sequence[str] = (), inputs: int | None = None) -> str:
        """What is guaranteed at this level, over what, and what it is worth with so many rows, in a sentence.

        Coverage of new rows given the n at hand is Beta(k, n + 1 - k), k = ceil((n + 1) level), without ties.

        Args:
            level: the probability.
            names: of several targets, or of the classes where made `by_class`.
            inputs: how many were set aside, where some targets are missing in some; None: as many as `calibrate` got.
        """
        thresholds(self.scores, level, self._called(names))  # or says how many rows it takes
        behind, alike, total = self._behind(names, inputs)
        spreads = [100 * _spread(len(group), level) for group in self.scores]
        low, high = f"{min(spreads):.1f}", f"{max(spreads):.1f}"
        what = "interval" if isinstance(self.score, RealScore) else "set of classes"
        average = f"on average over such sets of {total:,}" if alike else "on average over such sets"
        return (
            f"with {behind}, a new one from the same source is in its {100 * level:g} % {what} with a "
            f"probability of at least {100 * level:g} %{self._over()}, {average}; with these coverage "
            f"varies about it by {low if low == high else f'{low} to {high}'} points (one sd)"
        )

    def _over(self) -> str:
        """What the probability is of."""
        if isinstance(self.score, RealScore):
            return ", for each target by itself" if len(self.scores) > 1 else ""
        return ", within every class" if self.by_class else ", over inputs of all classes, not within each class"

    def _behind(self, names: Sequence[str], inputs: int | None) -> tuple[str, bool, int]:
        """Which inputs stand behind it, in words; whether as many stand behind each target; and how many they are."""
        each = self.rows_of_each(names)
        known = sum(each.values()) if self.by_class else max(map(len, self.scores))
        total = inputs or self.inputs or known
        text, alike = f"{total:,} inputs set aside", set(each.values()) <= {total}
        if not each and known < total:
            return f"{text} ({known:,} with a target)", False, total
        if not alike:
            few = len(each) <= MOST_NAMED
            shown = each.items() if few else sorted(each.items(), key=lambda one: one[1])[:MOST_NAMED]
            text += f" ({'' if few else 'fewest: '}{', '.join(f'{name} {rows:,}' for name, rows in shown)})"
        return text, alike, total

    def _called(self, names: Sequence[str]) -> list[str]:
        """What several targets or classes are called; "" where there is a single one."""
        kind = "class" if self.by_class else "target"
        return (list(names) or [f"{kind} {i}" for i in range(len(self.scores))]) if len(self.scores) > 1 else [""]

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `from_dict` reads it back, with the same intervals and sets at every level."""
        return {
            "method": self.method,
            "options": asdict(self.score),
            "shape": list(self.shape),
            "by_class": self.by_class,
            "scale": self.scale,
            "scores": [list(group) for group in self.scores],
            "inputs": self.inputs,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Guarantee:
        """What `to_dict` gave; ValueError or TypeError for anything else."""
        kinds: dict[str, Any] = {
            "method": str,
            "options": dict,
            "shape": list,
            "by_class": bool,
            "scale": str,
            "scores": list,
        }
        kinds["inputs"] = (int, type(None))
        all_of = {"inputs": None, **stored} if isinstance(stored, Mapping) else stored
        found = stored_fields(all_of, "guarantee", **kinds)
        scores = tuple(tuple(stored_number(s, "a score of a guarantee") for s in group) for group in found["scores"])
        score = METHODS[known_method(found["method"])].parse(found["method"], found["options"])
        shape = tuple(whole("a size in the shape of a guarantee", size) for size in found["shape"])
        inputs = None if found["inputs"] is None else whole("inputs", found["inputs"])
        return cls(score, scores, shape, found["by_class"], found["scale"], inputs)


def _spread(rows: int, level: float) -> float:
    """The sd of coverage with these rows."""
    k = rank(rows, level)
    return math.sqrt(k * (rows + 1 - k) / (rows + 2)) / (rows + 1)


def known_method(method: str) -> str:
    """The name, if there is such a method."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}{nearest(method, METHODS)}; expected one of {list(METHODS)}")
    return method
