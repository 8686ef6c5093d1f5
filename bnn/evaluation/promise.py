"""Do intervals, or class probabilities, keep their promise on data that were not fitted to? In one sentence.

**The rule.** A promise is broken where what was promised, a level or the mean probability of the predicted classes, is
outside Wilson's interval of what was found, and further from it than 3 points. Of real targets the intervals of 50, 80
and 90 % are looked at: each by an interval of 1 - 0.05 / 3, so that all three together raise a false alarm in at most
5 % of cases. Several targets (N, D) are judged one by one, each by the inputs where it is known: all its levels have
intervals of 1 - 0.05 / (3 D), and the promise is broken where a single target is off. (Targets of more dimensions, as
those of pixels, are judged together, by the mean of every input.)

Of classes two things are looked at, each by an interval of 1 - 0.05 / 2: the predicted classes, and class by class the
mean of its probability p beside its share of the inputs. Of C classes each has an interval of 1 - 0.05 / (2 C). The
variance of p - 1[y = c] is that which was found or, where it is larger, the mean of p (1 - p), which it has where
probabilities hold: so a class of which no input was seen is not off for that alone. A class is off where its mean
probability is outside, and further from the share than 3 points, or, as of rare classes, than half a point and a factor
of 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnn._common.records import decoded, encoded
from bnn._common.text import counted
from bnn.evaluation.classes import percent as exact_percent
from bnn.evaluation.coverage import LEVELS, coverage_of_each, own_coverage, wilson
from bnn.evaluation.interval_promise import GAP, KEPT, TargetPromise, broken, judged, judged_each, worst_of, z_of
from bnn.evaluation.pieces import Coverage
from bnn.evaluation.predictor import Array, Outputs
from bnn.metrics.written import percent

RARE_GAP, FACTOR = 0.005, 2.0  # of the share of a class, which matter together

OVER, UNDER, SKEWED = "overconfident", "underconfident", "skewed over the classes"
NOT_KNOWN = "whether this holds on data that were not fitted to is not known: `bayesianize evaluate` measures it"
ADVICE = {
    "regression": "use a guarantee (`bayesianize train --guarantee`, in Python guarantee=0.1), or more data",
    "classification": "calibrate on validation data, use a guarantee (`bayesianize train --guarantee`, in Python "
    "guarantee=0.1), or more data",
}
GUARANTEED = {
    "regression": "this run has a guarantee: `bayesianize predict --guarantee {level:g}` (guarantee={level:g} in "
    "Python) gives intervals that hold",
    "classification": "this run has a guarantee: `bayesianize predict --guarantee {level:g}` (guarantee={level:g} in "
    "Python) gives sets of classes that hold",
}
REWEIGHTED = (
    "these are probabilities of reweighted classes: train without --class-weights (without class_weights= in Python) "
    "for those of the data as they are"
)
OF_SINGLE = (
    "what is said about the predicted classes does not hold for each class: calibrate on validation data, or use more "
    "data, in which classes are as frequent as here"
)


@dataclass(frozen=True)
class ClassShare:
    """A class whose mean probability is clearly not its share of the inputs.

    Args:
        name: of the class, or its number.
        probability: the mean over all inputs.
        share: of the inputs that are of this class.
    """

    name: str
    probability: float
    share: float


@dataclass(frozen=True)
class Promise:
    """What was promised and what was found; as text it is one sentence, and what to do if it was broken.

    Args:
        task: "classification" or "regression".
        verdict: "as promised"; of intervals "too narrow", "too wide" or "of the wrong shape" (too wide at one level,
            too narrow at another); of classes "overconfident" or "underconfident", or "skewed over the classes" where
            only single classes are off. Of several targets that of the worst.
        promised: the level that is furthest off (where none is, 0.9), or the mean probability of predicted classes.
        held: the share of targets in such intervals, or the accuracy.
        low, high: its 95 % interval.
        inputs: how many there were; where one of several targets is off, those where the worst is known, and all of
            these figures are its own.
        on: of which part.
        advice: what to do; "" where the promise is kept.
        levels: of real targets, what intervals of 50, 80 and 90 % hold; of several over all of them.
        targets: how many an input has, some of which may be missing; 1 of classes.
        classes: those whose mean probability is clearly not their share, the worst first.
        by_target: of several targets, the same for each by its name or its number. Empty in older files.
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
    classes: tuple[ClassShare, ...] = ()
    by_target: dict[str, TargetPromise] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether it is."""
        return self.verdict == KEPT

    @property
    def worst(self) -> str:
        """The name of the one of several targets that is furthest off; "" where none is."""
        return worst_of(self.by_target)

    @property
    def sentence(self) -> str:
        """As people read it."""
        what = self._intervals() if self.task == "regression" else self._probabilities()
        if self.kept:
            return f"{what}: as promised{self._of_each()}, within what {self._inputs()} can tell"
        return f"{what}: {self.verdict}; {self.advice}"

    def __str__(self) -> str:
        return self.sentence

    def _intervals(self) -> str:
        """How many targets are in them; where single targets are off, of the worst."""
        if self.worst:
            return self._of_worst()
        others = _at_others(self.levels, self.promised)
        things, whose = ("targets", "") if self.targets == 1 else ("inputs", "the targets of ")
        what = f"{percent(self.promised, 0)} intervals hold {percent(self.held)} of {whose}{self.inputs:,} {self.on} "
        return f"{what}{things} ({others})" if others else f"{what}{things}"

    def _of_worst(self) -> str:
        """How many of the worst target are in its intervals, and how many more targets are off."""
        one, others = self.by_target[self.worst], sum(not each.kept for each in self.by_target.values()) - 1
        more = "" if not others else f"; {others:,} more target{'s are' if others > 1 else ' is'} off"
        return (
            f"{percent(one.promised, 0)} intervals of '{self.worst}' hold {percent(one.held)} of its {one.inputs:,} "
            f"known {self.on} targets ({_at_others(one.levels, one.promised)}{more})"
        )

    def _of_each(self) -> str:
        """That several targets were looked at one by one."""
        return f" for each of {counted(len(self.by_target), 'target')}" if self.by_target else ""

    def _inputs(self) -> str:
        """How many were looked at; of several targets from the one that is known least often to the most."""
        known = sorted(one.inputs for one in self.by_target.values()) or [self.inputs]
        span = f"{known[0]:,}" if known[0] == known[-1] else f"{known[0]:,} to {known[-1]:,}"
        return f"{span} {'targets' if self.task == 'regression' and self.targets == 1 else 'inputs'}"

    def _probabilities(self) -> str:
        """How sure of its classes it is, and how often right; and the class that is furthest off."""
        what = (
            f"{percent(self.promised)} sure of its classes on average, and right on {percent(self.held)} of "
            f"{self.inputs:,} {self.on} inputs"
        )
        if not self.classes:
            return what
        worst, others = self.classes[0], len(self.classes) - 1
        more = "" if not others else f" ({others:,} more class{'es are' if others > 1 else ' is'} off)"
        return (
            f"{what}; '{worst.name}' has a probability of {exact_percent(worst.probability)} on average, and is "
            f"{exact_percent(worst.share)} of these inputs{more}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON: its fields, whether it is kept, and the sentence."""
        return {**encoded(self), "kept": self.kept, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Promise:
        """What `to_dict` gave."""
        found: Promise = decoded(cls, {k: v for k, v in stored.items() if k not in ("kept", "sentence")}, "promise")
        return found

    def advised(self, level: float | None, weighted: bool = False) -> Promise:
        """The same, with advice for one who has a guarantee at this level, or none, and class weights, or none."""
        return replace(self, advice=self._advice(level, weighted))

    def _advice(self, level: float | None, weighted: bool) -> str:
        if self.kept:
            return ""
        if self.classes and weighted:
            return REWEIGHTED
        if self.verdict == SKEWED:
            return OF_SINGLE
        return ADVICE[self.task] if level is None else GUARANTEED[self.task].format(level=level)


def promise_of(
    outputs: Outputs,
    targets: Array,
    on: str = "test",
    *,
    level: float | None = None,
    classes: Sequence[str] = (),
    names: Sequence[str] = (),
    weighted: bool = False,
) -> Promise | None:
    """That of predictions, by the rule above; None where no target is known.

    Args:
        outputs: for inputs that were not used for fitting.
        targets: real ones in their own units, NaN where missing, or class labels.
        on: what these inputs are called.
        level: of a guarantee that is at hand, which is then the advice; None: there is none.
        classes: their names; empty where they have none.
        names: of several real targets; without names they have numbers.
        weighted: whether some classes counted more than others in training.
    """
    if "max_prob" in outputs.scores:
        found = _of_classes(outputs, targets, on, classes)
    else:
        found = _of_intervals(outputs, targets, on, names)
    return None if found is None else found.advised(level, weighted)


def _of_intervals(outputs: Outputs, targets: Array, on: str, names: Sequence[str]) -> Promise | None:
    """That of real targets (N, ...), of several (N, D) one by one; without advice."""
    levels = own_coverage(outputs, targets, LEVELS)
    if not levels[-1].inputs:
        return None
    each = judged_each(coverage_of_each(outputs, targets, names))
    all_of = judged(levels, None if each else z_of(len(LEVELS)))
    shown = each.get(worst_of(each), all_of)
    numbers = (shown.promised, shown.held, shown.low, shown.high, shown.inputs)
    return Promise("regression", shown.verdict, *numbers, on, "", levels, targets[0].size, by_target=each)


def _of_classes(outputs: Outputs, labels: Array, on: str, names: Sequence[str]) -> Promise | None:
    if not len(labels):
        return None
    sure, right = float(outputs.mean.max(axis=1).astype(np.float64).mean()), outputs.mean.argmax(axis=1) == labels
    held, n = wilson(float(right.mean()), len(labels)), len(labels)
    off = classes_off(outputs.mean, labels, names)
    verdict = SKEWED if off else KEPT
    if broken(sure, held.value, n, z_of(2)):
        verdict = OVER if sure > held.value else UNDER
    return Promise("classification", verdict, sure, held.value, held.low, held.high, n, on, classes=off)


def classes_off(probs: Array, labels: Array, names: Sequence[str] = ()) -> tuple[ClassShare, ...]:
    """Classes whose mean probability is clearly not their share of the inputs, by the rule above, the worst first.

    Args:
        probs: (N, C).
        labels: (N,).
        names: of the C classes; empty where they have none.
    """
    n, count = probs.shape
    labels, given = labels.astype(np.int64), probs.mean(axis=0, dtype=np.float64)
    squares = np.einsum("nc,nc->c", probs, probs, dtype=np.float64) / n
    shares = np.bincount(labels, minlength=count) / n
    own = np.bincount(labels, weights=probs[np.arange(n), labels], minlength=count) / n  # E p 1[y = c]
    found = squares - 2 * own + shares - np.square(given - shares)
    error = np.sqrt(np.maximum(found, given - squares).clip(min=0) / n)
    gap = np.abs(given - shares)
    times = np.maximum(given, shares) > FACTOR * np.minimum(given, shares)
    off = (gap > z_of(2 * count) * error) & ((gap > GAP) | (times & (gap > RARE_GAP)))
    worst = [int(c) for c in np.argsort(-gap, kind="stable") if off[c]]
    named = tuple(names) or tuple(map(str, range(count)))
    return tuple(ClassShare(named[c], float(given[c]), float(shares[c])) for c in worst)


def _at_others(levels: Sequence[Coverage], shown: float) -> str:
    """What is held at the levels that are not shown already."""
    return ", ".join(f"{percent(one.level, 0)}: {percent(one.covered.value)}" for one in levels if one.level != shown)
