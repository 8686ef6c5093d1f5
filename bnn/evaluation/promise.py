"""Do intervals, or class probabilities, keep their promise on data that were not fitted to? In one sentence.

**The rule.** A promise is broken where what was promised, a level or the mean probability of the predicted classes, is
outside Wilson's interval of what was found, and further from it than 3 points. Of real targets the intervals of 50, 80
and 90 % are looked at: each by an interval of 1 - 0.05 / 3, so that all three together raise a false alarm in at most
5 % of cases; of classes it is one of 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnn._common.records import decoded, encoded
from bnn.evaluation.coverage import LEVELS, Z, own_coverage, wilson
from bnn.evaluation.pieces import Coverage
from bnn.evaluation.predictor import Array, Outputs
from bnn.metrics.written import percent

GAP = 0.03  # a smaller one is no matter, however certain it is
Z_OF_THREE = 2.393980  # two-sided, at 1 - 0.05 / 3

KEPT, NARROW, WIDE, SHAPE = "as promised", "too narrow", "too wide", "of the wrong shape"
OVER, UNDER = "overconfident", "underconfident"
NOT_KNOWN = "whether this holds on data that were not fitted to is not known: `bayesianize evaluate` measures it"
ADVICE = {
    "regression": "use a guarantee (`bayesianize train --guarantee`, in Python guarantee=0.1), or more data",
    "classification": "calibrate on validation data, use a guarantee (`bayesianize train --guarantee`, in Python "
    "guarantee=0.1), or more data",
}
GUARANTEED = {
    "regression": "this run has a guarantee: `bayesianize predict --guarantee 0.9` gives intervals that hold",
    "classification": "this run has a guarantee: `bayesianize predict --guarantee 0.9` gives sets of classes that hold",
}


@dataclass(frozen=True)
class Promise:
    """What was promised and what was found; as text it is one sentence, and what to do if it was broken.

    Args:
        task: "classification" or "regression".
        verdict: "as promised"; of intervals "too narrow", "too wide" or "of the wrong shape" (too wide at one level,
            too narrow at another); of classes "overconfident" or "underconfident".
        promised: the level that is furthest off (where none is, 0.9), or the mean probability of predicted classes.
        held: the share of targets in such intervals, or the accuracy.
        low, high: its 95 % interval.
        inputs: how many there were.
        on: of which part.
        advice: what to do; "" where the promise is kept.
        levels: of real targets, what intervals of 50, 80 and 90 % hold.
        targets: how many an input has, some of which may be missing; 1 of classes.
    """

    task: str
    verdict: str
    promised: float
    held: float
    low: float
    high: float
    inputs: int
    on: str
    advice: str = ""
    levels: tuple[Coverage, ...] = ()
    targets: int = 1

    @property
    def kept(self) -> bool:
        """Whether it is."""
        return self.verdict == KEPT

    @property
    def sentence(self) -> str:
        """As people read it."""
        if self.task == "regression":
            others = ", ".join(
                f"{percent(c.level, 0)}: {percent(c.covered.value)}" for c in self.levels if c.level != self.promised
            )
            things = "targets" if self.targets == 1 else "inputs"
            whose = "" if self.targets == 1 else "the targets of "
            what = (
                f"{percent(self.promised, 0)} intervals hold {percent(self.held)} of {whose}{self.inputs:,} {self.on} "
            )
            what += f"{things} ({others})" if others else things
        else:
            what = (
                f"{percent(self.promised)} sure of its classes on average, and right on {percent(self.held)} of "
                f"{self.inputs:,} {self.on} inputs"
            )
            things = "inputs"
        if self.kept:
            return f"{what}: as promised, within what {self.inputs:,} {things} can tell"
        return f"{what}: {self.verdict}; {self.advice}"

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """As JSON: its fields, whether it is kept, and the sentence."""
        return {**encoded(self), "kept": self.kept, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Promise:
        """What `to_dict` gave."""
        found: Promise = decoded(cls, {k: v for k, v in stored.items() if k not in ("kept", "sentence")}, "promise")
        return found

    def advised(self, guarantee: bool) -> Promise:
        """The same, with the advice for one who has a guarantee, or has none."""
        return replace(self, advice=_advice(self.task, self.verdict, guarantee))


def promise_of(outputs: Outputs, targets: Array, on: str = "test", guarantee: bool = False) -> Promise | None:
    """That of predictions, by the rule above; None where no target is known.

    Args:
        outputs: for inputs that were not used for fitting.
        targets: real ones in their own units, NaN where missing, or class labels.
        on: what these inputs are called.
        guarantee: whether there is one at hand, which is then the advice.
    """
    if "max_prob" in outputs.scores:
        return _of_classes(outputs, targets, on, guarantee)
    each = targets[0].size if len(targets) else 1
    return of_intervals(own_coverage(outputs, targets, LEVELS), on, guarantee, each)


def of_intervals(found: Sequence[Coverage], on: str, guarantee: bool = False, targets: int = 1) -> Promise | None:
    """That of intervals, by how much those of 50, 80 and 90 % hold, for inputs of so many targets."""
    if not found or not found[-1].inputs:
        return None
    off = [one for one in found if _broken(one.level, one.covered.value, one.inputs, Z_OF_THREE)]
    shown = max(off, key=lambda one: abs(one.covered.value - one.level), default=found[-1])
    signs = {one.covered.value > one.level for one in off}
    verdict = KEPT if not off else SHAPE if len(signs) > 1 else WIDE if signs == {True} else NARROW
    numbers = (shown.level, shown.covered.value, shown.covered.low, shown.covered.high, shown.inputs)
    advice = _advice("regression", verdict, guarantee)
    return Promise("regression", verdict, *numbers, on, advice, tuple(found), targets)


def _of_classes(outputs: Outputs, labels: Array, on: str, guarantee: bool) -> Promise | None:
    if not len(labels):
        return None
    sure, right = float(outputs.mean.max(axis=1).astype(np.float64).mean()), outputs.mean.argmax(axis=1) == labels
    held, n = wilson(float(right.mean()), len(labels)), len(labels)
    verdict = KEPT if not _broken(sure, held.value, n, Z) else OVER if sure > held.value else UNDER
    numbers = (sure, held.value, held.low, held.high, n)
    return Promise("classification", verdict, *numbers, on, _advice("classification", verdict, guarantee))


def _broken(promised: float, held: float, inputs: int, z: float) -> bool:
    """Whether the promise is outside the interval of what was found, and by more than the gap that matters."""
    found = wilson(held, inputs, z)
    return not found.low <= promised <= found.high and abs(held - promised) > GAP


def _advice(task: str, verdict: str, guarantee: bool) -> str:
    return "" if verdict == KEPT else (GUARANTEED if guarantee else ADVICE)[task]
