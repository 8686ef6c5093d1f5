"""The options of a prediction, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import nn

from bnn._common.checks import check_size
from bnn._common.errors import OptionError
from bnn._common.text import nearest
from bnn._engine.members import combinations, default_samples
from bnn.train.monitor import is_bayesian

KINDS = ("total", "aleatoric", "epistemic")  # of uncertainty
LEVEL = 0.9  # of the interval of a real target, where nobody says


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
        self._check_by()

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
