"""Scores of classes, from predicted probabilities: a set holds all classes whose score is at most q.

p_(1) >= p_(2) >= ... are the probabilities of a row in their order, equal ones in the order of the classes, and r is
the rank of a class, from 1 on. u is one number per row: uniform on [0, 1) where the sets are randomised, else 0.

    LAC    s = 1 - p                                         the smallest sets on average
    APS    s = p_(1) + ... + p_(r-1) + u p                   larger where the network is unsure, smaller elsewhere
    RAPS   s = that of APS + lamda max(0, r - k_reg)         APS without its long tails, for many classes

With u = 0 the score of APS is the probability of all classes before this one: the most probable class has score 0, so
that no set is empty. Randomised sets are smaller, hit the level exactly, and may be empty, as those of LAC may.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bnn._common.checks import check_bool, check_positive, check_size
from bnn._common.options import Options
from bnn.likelihoods.predictions import ClassPrediction
from bnn.metrics.checks import Floats, probabilities, to_numpy


def class_probabilities(prediction: Any) -> Floats:
    """(N, C) of a `ClassPrediction` or of probabilities themselves; the probability of a one, (N,), is two classes."""
    if isinstance(prediction, tuple) and not isinstance(prediction, ClassPrediction):
        raise TypeError(
            "for classes give what bnn.predict gives for them, a ClassPrediction, or probabilities (N, C); got a "
            f"{type(prediction).__name__}"
        )
    probs = to_numpy(prediction.probs if isinstance(prediction, ClassPrediction) else prediction)
    if probs.ndim and len(probs) and probs.size == len(probs):
        one = probs.reshape(-1).astype(np.float64)
        probs = np.stack([1 - one, one], axis=1)
    return probabilities(probs).astype(np.float64)


@dataclass(frozen=True)
class ClassScore(Options, ABC):
    """How badly a class fits what was predicted, as a number."""

    name: ClassVar[str]

    @abstractmethod
    def of(self, probs: Floats, u: Floats) -> Floats:
        """The scores (N, C) of all classes, from probabilities (N, C) and numbers u (N, 1)."""

    @abstractmethod
    def uniforms(self, rows: int, generator: torch.Generator | None) -> Floats:
        """u of every row, (N, 1): 0, or drawn where the score is randomised."""


@dataclass(frozen=True)
class Lac(ClassScore):
    """s = 1 - p, of least ambiguous sets."""

    name = "lac"

    def of(self, probs: Floats, u: Floats) -> Floats:
        return 1 - probs

    def uniforms(self, rows: int, generator: torch.Generator | None) -> Floats:
        return np.zeros((rows, 1))


@dataclass(frozen=True)
class Aps(ClassScore):
    """s = the probability of all classes that are more probable, and u times its own: adaptive prediction sets.

    Args:
        randomized: whether u is drawn, uniform on [0, 1), or 0.
    """

    name = "aps"

    randomized: bool = False  # the same answer every time

    def __post_init__(self) -> None:
        check_bool("randomized", self.randomized)

    def of(self, probs: Floats, u: Floats) -> Floats:
        return _before(probs)[0] + u * probs

    def uniforms(self, rows: int, generator: torch.Generator | None) -> Floats:
        return _drawn(rows, generator) if self.randomized else np.zeros((rows, 1))


@dataclass(frozen=True)
class Raps(ClassScore):
    """The score of `Aps` + lamda max(0, r - k_reg), r the rank of the class: regularised adaptive prediction sets.

    Args:
        lamda, k_reg: larger lamda and smaller k_reg make for smaller sets. They must not be chosen on the calibration
            rows.
        randomized: as for `Aps`.
    """

    name = "raps"

    lamda: float = 0.01  # this and k_reg are usual for a thousand classes
    k_reg: int = 5
    randomized: bool = False

    def __post_init__(self) -> None:
        check_positive("lamda", self.lamda, zero=True)
        if self.k_reg != 0:
            check_size("k_reg", self.k_reg)
        check_bool("randomized", self.randomized)

    def of(self, probs: Floats, u: Floats) -> Floats:
        before, ranks = _before(probs)
        return before + u * probs + self.lamda * np.maximum(0, ranks - self.k_reg)

    def uniforms(self, rows: int, generator: torch.Generator | None) -> Floats:
        return _drawn(rows, generator) if self.randomized else np.zeros((rows, 1))


def _drawn(rows: int, generator: torch.Generator | None) -> Floats:
    device = "cpu" if generator is None else generator.device
    return np.asarray(torch.rand(rows, 1, dtype=torch.double, generator=generator, device=device).cpu().numpy())


def _before(probs: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """The probability of all classes before each one, and its rank from 1 on, both (N, C)."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    before, ranks = np.empty_like(probs), np.empty_like(order)
    sums = np.concatenate([np.zeros((len(probs), 1)), np.cumsum(ordered, axis=1)[:, :-1]], axis=1)
    np.put_along_axis(before, order, sums, axis=1)
    np.put_along_axis(ranks, order, np.arange(1, probs.shape[1] + 1)[None], axis=1)
    return before, ranks
