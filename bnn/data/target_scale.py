"""Real targets as numbers a network is trained on, and back: mean and sd, on a linear or a log scale, learned once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bnn._common.checks import check_bool
from bnn._common.errors import ArgumentError
from bnn._common.records import stored_number
from bnn.data.tables.columns import mean_and_sd

Numbers = Tensor | npt.ArrayLike
Values = npt.NDArray[np.float64]

LARGEST = 1e100  # of what a log scale gives back: squares of it can still be summed, as those of bnn.metrics
ENOUGH, SKEWED = 50, 1.0  # known targets, and the skewness from which a log scale is worth a hint


@dataclass(frozen=True)
class TargetScale:
    """Real targets are trained on as (y - mean) / sd; mean and sd (D,) are those of the training part.

    Positive targets may be trained on as (log y - mean) / sd; then mean and sd are those of log y.
    All methods take tensors, NumPy arrays and numbers, and return tensors. What is NaN stays NaN.

    Args:
        mean, sd: (D,), of the training part.
        log: whether they are those of log y.
    """

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    log: bool = False

    @classmethod
    def learned(cls, y: Values, positive: bool = False) -> TargetScale:
        """Mean and sd of all y (N, D) that are not NaN; sd 0 where a target is the same everywhere up to rounding."""
        columns = [mean_and_sd(np.log(one) if positive else one) for one in (each[~np.isnan(each)] for each in y.T)]
        return cls(tuple(mean for mean, _ in columns), tuple(sd for _, sd in columns), positive)

    def scaled(self, y: Numbers) -> Tensor:
        """(N, D) from the target's own units to units of sd."""
        y = _floating(y)
        y = y.log() if self.log else y
        return (y - y.new_tensor(self.mean)) / y.new_tensor(self.sd)

    def linear(self, mean: Numbers) -> Tensor:
        """A predicted mean, or a scaled target, (N, D), without the scaling: on a log scale the log of the target."""
        mean = _floating(mean)
        return mean * mean.new_tensor(self.sd) + mean.new_tensor(self.mean)

    def own_units(self, mean: Numbers) -> Tensor:
        """A scaled target, or end of an interval, (N, D), in the target's own units.

        A predicted mean, too, but on a log scale: there it becomes the median, as the order of targets is all that
        scales have in common (`bnn.metrics.lognormal_moments` has the mean). What is more than LARGEST is LARGEST.

        >>> TargetScale((10.0,), (2.0,)).own_units(0.5)
        tensor([11.], dtype=torch.float64)
        >>> TargetScale((0.0,), (1.0,), log=True).own_units(0.0)
        tensor([1.], dtype=torch.float64)
        """
        found = self.linear(mean)
        return found.double().exp().clamp(max=LARGEST) if self.log else found

    def own_variance(self, variance: Numbers) -> Tensor:
        """A predicted variance (N, D) in the target's own units, squared; on a log scale that of log y."""
        variance = _floating(variance)
        return variance * variance.new_tensor(self.sd).square()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"mean": list(self.mean), "sd": list(self.sd), "log": self.log}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TargetScale:
        """What `to_dict` gave; older versions knew no log scale."""
        mean, sd = (tuple(stored_number(one, f"{name} of a target") for one in stored[name]) for name in ("mean", "sd"))
        log = stored.get("log", False)
        check_bool("log", log)
        return cls(mean, sd, log)


def check_known(y: Tensor | None, part: str, names: Sequence[str]) -> None:
    """Raises unless every one of several targets (N, D) is known somewhere in the part."""
    if y is None or y.ndim != 2 or not y.is_floating_point():
        return
    empty = y.isnan().all(0).nonzero()[:, 0].tolist()
    if empty:
        what = repr(names[empty[0]]) if names else f"number {empty[0]}"
        raise ValueError(f"the target {what} is missing in all of the {part} part ({len(y)} inputs): leave it out")


def above_zero(y: Values, place: Callable[[int], str], what: Callable[[int], str], source: str) -> None:
    """Raises unless all targets (N, D) that are not NaN are above 0.

    Args:
        y: in their own units.
        place: what a row is called.
        what: what a target is called, by its number.
        source: where the targets are.
    """
    wrong = (y <= 0).any(axis=1).nonzero()[0]
    if not len(wrong):
        return
    shown = ", ".join(place(int(row)) for row in wrong[:5]) + ("" if len(wrong) <= 5 else ", ...")
    column = int((y[wrong[0]] <= 0).argmax())
    rows = "row has another" if len(wrong) == 1 else "rows have others"
    raise ArgumentError(
        f"{source}: positive=True takes targets above 0, and {len(wrong)} {rows}: {shown}; the first is "
        f"{y[wrong[0], column]:g} in {what(column)}; correct or leave out such rows, or train on a linear scale",
        "positive",
    )


def skewness(values: Values) -> float:
    """E[((y - mean) / sd)^3] of numbers (N,), 0 where all are equal.

    >>> skewness(np.array([0.0, 0.0, 0.0, 1.0]))
    1.1547005383792517
    """
    mean, sd = mean_and_sd(values)
    return float((((values - mean) / sd) ** 3).mean()) if sd > 0 else 0.0


def scale_hint(y: Values, names: Sequence[str] = ()) -> str | None:
    """What to say where a log scale may serve these training targets (N, D) better; None where not.

    `names` are those of the targets, where they have some.

    The rule: all are above 0, and of every target there are at least ENOUGH, whose skewness is above SKEWED, that of
    their logarithm smaller.
    """
    for column in y.T:
        known = column[~np.isnan(column)]
        if len(known) < ENOUGH or known.min() <= 0:
            return None
        skew = skewness(known)
        if skew <= SKEWED or abs(skewness(np.log(known))) >= skew:
            return None
    called = ", ".join(map(repr, names))
    if len(y.T) == 1:
        what = f"the target {called} is" if called else "the target is"
    else:
        what = f"the targets {called} are all" if called else "all targets are"
    return f"{what} positive and skewed; positive=True trains on a log scale"


def _floating(values: Numbers) -> Tensor:
    """As a tensor of a floating type: its own, or float64 where `values` have none."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else values.double()
    array = np.array(values, order="C")  # a copy, which may be written to
    return torch.from_numpy(array if array.dtype in (np.float32, np.float64) else array.astype(np.float64))
