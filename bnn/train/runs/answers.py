"""What `Run.predict` takes and gives: its options, checked once, and the answers as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from bnn._common.checks import check_size
from bnn._common.errors import OptionError
from bnn._common.text import nearest
from bnn._engine.members import combinations, default_samples
from bnn.evaluation.predictor import Array, Outputs
from bnn.train.monitor import is_bayesian
from bnn.train.runs.abstaining import ABSTAIN, KINDS, Rule, uncertainty
from bnn.train.runs.given import Inputs

LEVEL = 0.9  # of the interval of a real target, by default
CLASS_DIGITS, REAL_DIGITS = 7, 10  # significant ones: class probabilities are float32, own units float64


@dataclass(frozen=True)
class PredictOptions:
    """The options of `Run.predict`, which says what they mean."""

    samples: int | None = None
    seed: int = 0
    level: float | None = None
    abstain_above: float | None = None
    coverage: float | None = None
    by: str | None = None
    probs: bool = False
    batch_size: int = 500
    guarantee: float | None = None

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)
        if self.abstain_above is not None and self.coverage is not None:
            raise OptionError(
                "{abstain_above} gives the threshold and {coverage} looks for one; give one of them, not both",
                abstain_above=None,
                coverage=None,
            )
        if self.abstain_above is not None and not 0 <= self.abstain_above < math.inf:
            raise OptionError(
                f"{{abstain_above}} is the largest uncertainty to answer with, 0 or more; got {self.abstain_above:g}",
                abstain_above=None,
            )
        if self.coverage is not None and not 0 < self.coverage <= 1:
            raise OptionError(
                f"{{coverage}} is the share of inputs to answer, above 0 and at most 1, as 0.9; got {self.coverage:g}",
                coverage=None,
            )
        if self.guarantee is not None and not 0 < self.guarantee < 1:
            raise OptionError(
                f"{{guarantee}} is the probability that is guaranteed, between 0 and 1, as 0.9; got {self.guarantee:g}",
                guarantee=None,
            )
        if self.guarantee is not None and self.level is not None:
            raise OptionError(
                "{level} is the probability of intervals without a guarantee; give it or {guarantee}, not both",
                level=self.level,
                guarantee=self.guarantee,
            )
        self._check_by()

    @property
    def promised(self) -> float:
        """The level that is guaranteed, where one is."""
        assert self.guarantee is not None
        return self.guarantee

    def _check_by(self) -> None:
        if self.by is None:
            return
        if self.by not in KINDS:
            raise ValueError(
                f"unknown uncertainty {self.by!r}{nearest(self.by, KINDS)}; expected one of {', '.join(KINDS)}"
            )
        if self.abstain_above is None and self.coverage is None:
            raise OptionError(
                "{by} says when to abstain; give a threshold, too: {abstain_above} or {coverage}",
                by=self.by,
                abstain_above=None,
                coverage=0.9,
            )

    def of_run(self, network: nn.Module, task: str) -> PredictOptions:
        """These options for a network and its task; a plain network runs once, as it is (0 draws)."""
        if task == "classification" and self.level is not None:
            raise OptionError(
                "{level} is for intervals of real targets, and this run predicts classes; leave it out", level=None
            )
        if task == "regression" and self.probs:
            raise OptionError("{probs} is for classes, and this run predicts real targets; leave it out", probs=None)
        if self.level is not None and not 0 < self.level < 1:
            raise OptionError(
                f"{{level}} is the probability of the interval, between 0 and 1, as 0.9; got {self.level:g}", level=None
            )
        plain = not is_bayesian(network)
        if self.by == "epistemic" and plain:
            raise OptionError(
                "{by}: this run is a plain network, which is one function without doubt about itself, so its "
                "epistemic uncertainty is 0 everywhere; abstain by the total",
                by=self.by,
            )
        if self.by == "epistemic" and draws_of(network, self.samples) == 1:
            raise OptionError(
                "{by}: with {samples} nothing can disagree, so it is 0 everywhere; use more",
                by=self.by,
                samples=self.samples,
            )
        return replace(self, samples=0) if plain else self


def draws_of(network: nn.Module, samples: int | None) -> int:
    """How many draws `samples` are: None is the default number, 0 every member once."""
    return default_samples(network) if samples is None else samples or combinations(network)


@dataclass(frozen=True)
class Answers:
    """A table of N rows: `answers["mean"]` is a column, `answers.records()` are the rows.

    Args:
        columns: {name: N cells}, text or numbers.
        text: columns that are no numbers.
        abstained: rows in which nothing is answered.
        about: the run, its task, draws, seed, level and threshold, as JSON.
        rule: when to abstain; None: never.
        stated: what is guaranteed, in a sentence; None: nothing is.
    """

    columns: dict[str, list[Any]]
    text: frozenset[str]
    abstained: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    stated: str | None = None

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}{nearest(name, self.columns)}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["input"])

    def rows(self, most: int | None = None) -> list[list[Any]]:
        """The first `most` rows, or all."""
        return [list(row) for row in zip(*(cells[:most] for cells in self.columns.values()), strict=True)]

    def records(self) -> list[dict[str, Any]]:
        """Every row as {column: cell}."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows()]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: what `bayesianize predict --json` prints."""
        return self.about | {"rows": self.records()}


def class_answers(
    inputs: Inputs,
    outputs: Outputs,
    classes: Sequence[str],
    rule: Rule | None = None,
    probs: bool = False,
    sets: list[str] | None = None,
) -> Answers:
    """Class, its probability, and uncertainties in nats; `sets` that are guaranteed; an answer where there is a rule;
    with `probs` every class.
    """
    best = outputs.mean.argmax(1)  # (N,)
    names = [classes[i] for i in best.tolist()]
    found: dict[str, list[Any]] = {"class": names, "probability": _numbers(outputs.mean.max(1), CLASS_DIGITS)}
    found |= {kind: _numbers(getattr(outputs, kind), CLASS_DIGITS) for kind in KINDS}
    if sets is not None:
        found["set"] = sets
    abstains = None if rule is None else rule.abstains(uncertainty(outputs, rule.by, "classification"))
    if abstains is not None:
        found["answer"] = _answered(names, abstains[:, 0])
    if probs:
        found |= {f"p({name})": _numbers(outputs.mean[:, i], CLASS_DIGITS) for i, name in enumerate(classes)}
    return _table(inputs, found, {"class", "set", "answer"}, abstains)


def real_answers(
    inputs: Inputs,
    outputs: Outputs,
    level: float,
    rule: Rule | None = None,
    ends: tuple[Array, Array] | None = None,
    names: Sequence[str] = (),
) -> Answers:
    """Mean, the central interval of the mixture of draws, and standard deviations, all in the target's own units.

    `ends` of intervals that are guaranteed take the place of those of the mixture.
    Where the draws predict no Gaussians, the interval is that of the Gaussian with the mean and the variance.
    Of several targets each has its columns, with its name of `names` behind theirs, as in `mean_price`; where targets
    have no names, with their numbers from 0, as in `mean_0`.
    """
    low, high = outputs.interval(level) if ends is None else ends
    sds = {kind: uncertainty(outputs, kind, "regression") for kind in KINDS}  # (N, D) each
    values = {"mean": _columns(outputs.mean), "low": _columns(low), "high": _columns(high)} | sds
    abstains = None if rule is None else rule.abstains(sds[rule.by])
    found: dict[str, list[Any]] = {}
    targets = values["mean"].shape[1]
    for target in range(targets):
        behind = "" if targets == 1 else f"_{names[target] if names else target}"
        for name, numbers in values.items():
            found[name + behind] = _numbers(numbers[:, target], REAL_DIGITS)
        if abstains is not None:
            found["answer" + behind] = _answered(found["mean" + behind], abstains[:, target])
    return _table(inputs, found, set(), abstains)


def _answered(answers: Sequence[Any], abstains: Array) -> list[Any]:
    return [ABSTAIN if silent else answer for answer, silent in zip(answers, abstains.tolist(), strict=True)]


def _table(inputs: Inputs, found: dict[str, list[Any]], text: set[str], abstains: Array | None) -> Answers:
    """The answers behind the names of the inputs; a kept column whose name is taken becomes "given <name>"."""
    taken = {"input", *found}
    kept = {f"given {name}" if name in taken else name: list(cells) for name, cells in inputs.kept.items()}
    silent = 0 if abstains is None else int(abstains.all(axis=1).sum())
    return Answers({"input": list(inputs.names)} | kept | found, frozenset({"input", *kept, *text}), silent)


def _columns(values: Array) -> Array:
    """(N, D) of (N,) or (N, ...)."""
    return values.reshape(len(values), -1)


def _numbers(values: Array, digits: int) -> list[float]:
    """As Python numbers of so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=np.float64).tolist()]
