"""Columns scaled to mean 0 and sd 1 by numbers that belong to the fitted estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """z = (x - mean) / sd, column by column, in float64; a column without spread keeps its unit (sd = 1).

    Args:
        mean, sd: (D,).
    """

    mean: Floats
    sd: Floats

    @classmethod
    def learned(cls, columns: Floats) -> Scaling:
        """From training data (N, D).

        >>> Scaling.learned(np.array([[1.0, 7.0], [3.0, 7.0]]))
        Scaling(mean=array([2., 7.]), sd=array([1., 1.]))
        """
        mean = columns.mean(0)
        sd = np.sqrt(np.square(columns - mean).mean(0))
        smallest = 10 * np.finfo(np.float64).eps * np.abs(columns).max(0)  # below it a spread is rounding
        return cls(mean, np.where(sd > smallest, sd, 1.0))

    @classmethod
    def none(cls, columns: int) -> Scaling:
        """Leaves values as they are."""
        return cls(np.zeros(columns), np.ones(columns))

    def scaled(self, columns: Floats) -> Floats:
        """(..., D) in units of sd."""
        return np.asarray((columns - self.mean) / self.sd)

    def own_units(self, scaled: Floats) -> Floats:
        """What `scaled` was made from."""
        return np.asarray(scaled * self.sd + self.mean)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"mean": self.mean.tolist(), "sd": self.sd.tolist()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """What `to_dict` gave."""
        return cls(np.array(stored["mean"], dtype=np.float64), np.array(stored["sd"], dtype=np.float64))
