"""The registered metrics of real targets that ask for the whole predictive distribution, on either scale."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from bnn.metrics.checks import Floats
from bnn.metrics.lognormal import lognormal_crps_rows, lognormal_interval, lognormal_nll_rows
from bnn.metrics.mixture import Draws, mixture_crps_rows, mixture_interval, mixture_nll_rows
from bnn.metrics.registry import metric
from bnn.metrics.regression import crps_rows, inside, interval, nll_rows, per_row, targets_of, with_rows

SCALES = ["linear", "log"]


def predictive_interval(
    mean: ArrayLike, sd: ArrayLike, draws: Draws | None, level: float, scale: str = "linear", df: float = math.inf
) -> tuple[Floats, Floats]:
    """Ends (N, ...) of the central interval: of the mixture of the draws, or of N(mean, sd^2)."""
    if draws is None:
        return interval(mean, sd, level)
    return (lognormal_interval if scale == "log" else mixture_interval)(*draws, level, df)


@metric(
    "regression",
    "NLL",
    "negative log-likelihood: the price of the density given to the truth",
    name="nll",
    brief=True,
)
def predictive_losses(
    mean: ArrayLike,
    sd: ArrayLike,
    targets: ArrayLike,
    draws: Draws | None = None,
    losses: ArrayLike | None = None,
    scale: str = "linear",
    df: float = math.inf,
) -> Floats:
    """-log p(y) of every datum (N,): as the likelihood says, of the mixture of the draws, or of N(mean, sd^2)."""
    if losses is not None:
        return with_rows("losses", losses)
    if draws is None:
        return nll_rows(mean, sd, targets)
    return (lognormal_nll_rows if scale == "log" else mixture_nll_rows)(*draws, targets, df)


@metric(
    "regression",
    "CRPS",
    "how far the predicted distribution is from the truth, in own units",
    format="figures",
    name="crps",
    brief=True,
    own_units=True,
)
def predictive_crps(
    mean: ArrayLike,
    sd: ArrayLike,
    targets: ArrayLike,
    draws: Draws | None = None,
    scale: str = "linear",
    df: float = math.inf,
) -> Floats:
    """CRPS of every datum (N,): of the mixture of the draws, or of N(mean, sd^2)."""
    if draws is None:
        return crps_rows(mean, sd, targets)
    return (lognormal_crps_rows if scale == "log" else mixture_crps_rows)(*draws, targets, df)


@metric(
    "regression",
    "coverage",
    "share of targets in their {level} % interval: should be {level} %",
    better="level",
    format="percent",
    name="coverage",
)
def covered(low: Floats, high: Floats, targets: ArrayLike) -> Floats:
    """Share of every datum's targets that are between low and high (N,)."""
    return inside(low, high, targets_of(targets))


@metric(
    "regression",
    "interval width",
    "mean width of the {level} % intervals, in own units",
    format="figures",
    name="sharpness",
    shown=False,
    own_units=True,
)
def widths(low: Floats, high: Floats, targets: ArrayLike) -> Floats:
    """Mean width of the intervals of every datum's known targets (N,)."""
    return per_row(np.where(np.isnan(targets_of(targets)), np.nan, high - low))
