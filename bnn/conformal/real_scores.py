"""Scores of real targets, and the intervals that follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bnn._common.checks import share
from bnn._common.options import Options
from bnn.likelihoods.predictions import RegressionPrediction
from bnn.metrics.checks import Floats, numbers, same_shape, to_numpy
from bnn.metrics.mixture import mixture_interval
from bnn.metrics.regression import scales


@dataclass(frozen=True)
class Reals:
    """What is predicted for N rows of D real targets.

    Args:
        mean, sd: of the predictive distribution, (N, D).
        draws: means and sds of its K components, both (K, N, D); None where only the moments are known.
        shape: of the targets of one row, as the prediction has them; D is the product.
    """

    mean: Floats
    sd: Floats
    draws: tuple[Floats, Floats] | None
    shape: tuple[int, ...]

    @classmethod
    def of(cls, prediction: Any) -> Reals:
        """Of a `RegressionPrediction`, or of a pair of means and sds (K, N, ...)."""
        if isinstance(prediction, RegressionPrediction):
            mean, variance = numbers("mean", prediction.mean), scales("total", prediction.total)
            same_shape(mean=mean, total=variance)
            return cls(_columns(mean), _columns(np.sqrt(variance)), None, mean.shape[1:])
        if not is_real(prediction):
            raise TypeError(
                "for real targets give what bnn.predict gives for them, a RegressionPrediction, or a pair of means and "
                f"sds (K, N, ...); got a {type(prediction).__name__}"
            )
        means, sds = numbers("means", prediction[0]), scales("sds", prediction[1])
        same_shape(means=means, sds=sds)
        if means.ndim < 2:
            raise ValueError(f"means and sds must have shape (K, N, ...), K draws first; got {means.shape}")
        draws = (means.reshape(*means.shape[:2], -1), sds.reshape(*means.shape[:2], -1))
        sd = np.hypot(np.sqrt(np.square(draws[1]).mean(0)), draws[0].std(0))
        return cls(draws[0].mean(0), sd, draws, means.shape[2:])

    def targets(self, y: Any) -> Floats:
        """Targets (N, D), NaN where one is missing; (N,) will do where a row has one."""
        found = np.asarray(to_numpy(y), dtype=np.float64)
        wanted = (len(self.mean), *self.shape)
        if found.shape != wanted and (found.shape != wanted[:1] or self.mean.shape[1] != 1):
            raise ValueError(f"targets for predictions of shape {wanted} must have that shape; got {found.shape}")
        if np.isinf(found).any():
            raise ValueError(f"targets must be finite, or NaN where missing; {np.isinf(found).sum()} are infinite")
        return _columns(found)


def is_real(prediction: Any) -> bool:
    """Whether it is of real targets: a `RegressionPrediction`, or a pair of means and sds."""
    return isinstance(prediction, RegressionPrediction) or (isinstance(prediction, tuple) and len(prediction) == 2)


def _columns(array: Floats) -> Floats:
    return array.reshape(len(array), -1)


@dataclass(frozen=True)
class RealScore(Options, ABC):
    """How far a real target is from what was predicted, as a number, and the interval where it is at most q."""

    name: ClassVar[str]

    @abstractmethod
    def of(self, predicted: Reals, y: Floats) -> Floats:
        """The scores (N, D) of targets (N, D)."""

    @abstractmethod
    def interval(self, predicted: Reals, q: Floats) -> tuple[Floats, Floats]:
        """Ends (N, D) of the interval of all targets whose score is at most q (D,)."""


@dataclass(frozen=True)
class Normalized(RealScore):
    """s = |y - mean| / sd with the total sd of the prediction: intervals mean -+ q sd, wider where we know less."""

    name = "normalized"

    def of(self, predicted: Reals, y: Floats) -> Floats:
        return np.abs(y - predicted.mean) / predicted.sd

    def interval(self, predicted: Reals, q: Floats) -> tuple[Floats, Floats]:
        return predicted.mean - q * predicted.sd, predicted.mean + q * predicted.sd


@dataclass(frozen=True)
class Quantile(RealScore):
    """s = max(low - y, y - high) with the central interval [low, high] of the mixture of draws: [low - q, high + q].

    Any level is guaranteed; that of `base` moves the predicted interval least. An interval that would have a negative
    width, at a much lower level, is the point in its middle.

    Args:
        base: the probability of the predicted interval.
    """

    name = "quantile"

    base: float = 0.9  # the level that is asked for most

    def __post_init__(self) -> None:
        share("base", self.base)

    def of(self, predicted: Reals, y: Floats) -> Floats:
        low, high = self._predicted(predicted)
        return np.maximum(low - y, y - high)

    def interval(self, predicted: Reals, q: Floats) -> tuple[Floats, Floats]:
        low, high = self._predicted(predicted)
        middle = 0.5 * (low + high)
        return np.minimum(low - q, middle), np.maximum(high + q, middle)

    def _predicted(self, predicted: Reals) -> tuple[Floats, Floats]:
        if predicted.draws is None:
            raise ValueError(
                "the method 'quantile' takes quantiles of the mixture of draws: pass the means and sds of the draws "
                "(K, N, ...), as likelihood.components(prediction.samples) of bnn.predict(..., keep_samples=True)"
            )
        return mixture_interval(*predicted.draws, self.base)
