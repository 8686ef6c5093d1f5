"""Noise of real targets: Gaussian while a network is trained, perhaps with heavier tails once it is settled."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnn._common.checks import check_bool
from bnn.functional.noise import holding_scale, likeliest_scale, tails
from bnn.likelihoods.base import Likelihood, check_taught, per_datum, predictive_nll
from bnn.likelihoods.predictions import RegressionPrediction

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
DEGREES = (math.inf, 60.0, 30.0, 15.0, 10.0, 7.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.2)  # that are tried, in this order
GAUSSIAN = 30.0  # degrees of freedom above which noise counts as Gaussian: 50 % intervals are a point apart at most
DIGITS = 4  # of df: what is kept is 1 / df, in float32


class Residuals(NamedTuple):
    """Of one target, or of all alike.

    Args:
        values: y - mean of K draws, (K, n); not finite where they are not known.
        sizes: (..., n), which say how large they could be.
        sds: (K, n), to be multiplied by the scale; None: 1 everywhere.
    """

    values: Tensor
    sizes: Tensor
    sds: Tensor | None = None


class RealNoise(Likelihood):
    """Real targets with noise of a settled scale and of tails that are settled with it.

    The noise has `df` degrees of freedom: inf is a Gaussian, less a finite mixture of Gaussians that stands for
    Student's t (`bnn.functional.noise.tails`), of the same standard deviation. Of several targets, which of these
    Gaussians the noise of a datum comes from holds for all: a datum that is far off in one may be in another. What asks
    for moments or curvature alone, as a teacher's divergence and Laplace do, takes the Gaussian of this sd.

    Args:
        tails: whether settling may find tails that are heavier than a Gaussian's; False: df stays inf.
    """

    task = "regression"
    _tails: Tensor  # 1 / df

    def __init__(self, tails: bool) -> None:
        super().__init__()
        check_bool("tails", tails)
        self.tails = tails
        self.register_buffer("_tails", torch.zeros(()))

    def df(self) -> float:
        """Degrees of freedom of the noise, above 2; inf: Gaussian."""
        found = float(self._tails)
        return round(1 / found, DIGITS) if found else math.inf

    def levels(self) -> dict[str, list[float]]:
        """The scale by its name, and {"df": [...]} where tails are heavier than a Gaussian's."""
        heavier = {"df": [self.df()]} if self._tails else {}
        return {self.noise[0].removeprefix("_"): self._scale().detach().reshape(-1).tolist(), **heavier}

    def settle_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the df, in place, and the scales that are likeliest under it. See `Likelihood.settle_`.

        The df is that of `mean_degrees`, of all `DEGREES` with their likeliest scales. Of one draw and Gaussian noise a
        scale is the rms of its residuals.
        """
        if not self.settles:
            return
        parts = self._residuals(outputs, target)
        scales = self._fitted_(parts, math.inf)
        if self.tails:
            losses = [predictive_nll(self, outputs, target).detach().sum()]
            for df in DEGREES[1:]:
                scales = self._fitted_(parts, df, near=scales)
                losses.append(predictive_nll(self, outputs, target).detach().sum())
            self._fitted_(parts, mean_degrees(torch.stack(losses)))
        self.settled = True

    def start_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the likeliest scales of Gaussian noise, in place; noise that is held stays."""
        if self.settles:
            self._fitted_(self._residuals(outputs, target), math.inf)

    def fit_intervals_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the scales, in place, to those with which intervals hold as many targets as they say (`holding_scale`).

        The tails stay. So does the scale of a target of which the errors are 0 as often as not.

        Args:
            outputs: of one draw, (1, N, ...).
            target: (N, ...), NaN where it is not known.
        """
        scales = self._scale().detach().double().cpu().reshape(-1).clone()
        for i, part in enumerate(self._residuals(outputs, target)):
            errors = (part.values if part.sds is None else part.values / part.sds)[0]
            errors = errors[torch.isfinite(errors)]
            found = holding_scale(errors, self.df()) if len(errors) else scales[i]
            scales[i] = found if found > 0 else scales[i]
        with torch.no_grad():
            self._take_(scales)

    def rescale_(self, found: RealNoise) -> None:
        """Multiplies its scales by those of `found`, in place, and takes over the tails.

        Args:
            found: was settled on data to whose predicted sds this noise belongs.
        """
        factors = found._scale().detach().double().cpu().reshape(-1)
        with torch.no_grad():
            self._take_(self._scale().detach().double().cpu().reshape(-1) * factors)
            self._tails.copy_(found._tails)
        self.settled = True

    def without_tails_(self) -> None:
        """Gaussian noise of the sd at hand."""
        self._tails.zero_()

    def of_logs(self) -> RealNoise:
        """With Gaussian noise: the exponential of any with heavier tails has a mean that a few rows decide, or none."""
        self.tails = False
        return self

    def learned_(self, values: Mapping[str, Any]) -> None:
        """Takes over the noise of a trained network, in place; what is older than `_tails` is Gaussian."""
        super().learned_({"_tails": 0.0, **values} if "_tails" in self.kept() else values)
        self.settled = True

    def nll(self, mean: Tensor, sd: Tensor, target: Tensor) -> Tensor:
        """-log sum_j p_j prod_d N(y_d; mean_d, (sd_d c_j)^2) of every datum (N,)."""
        df = self.df()
        if math.isinf(df):
            return gaussian_nll(mean, sd, target)
        p, c = (mean.new_tensor(part).reshape(-1, *[1] * mean.ndim) for part in tails(df))
        shape = (len(c), *mean.shape)
        each = gaussian_nll(*(one.expand(shape).flatten(0, 1) for one in (mean, sd * c, target)))  # (J N,)
        return -(p.log().reshape(-1, 1) - each.reshape(len(c), -1)).logsumexp(0)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}_tails", torch.zeros(()))  # Gaussian where it is older than tails
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _shown_tails(self) -> str:
        return (f", df={self.df():g}" if self._tails else "") + ("" if self.tails else ", tails=False")

    def _fitted_(self, parts: Sequence[Residuals], df: float, near: Tensor | None = None) -> Tensor:
        """Sets the likeliest scales (D,) under `df`, and returns them; those at hand where no residual is known."""
        before = self._scale().detach().double().cpu().reshape(-1)
        around: Sequence[Tensor | None] = [None] * len(parts) if near is None else list(near)
        found = torch.stack([settled_scale(*each, df=df) for each in zip(parts, before, around, strict=True)])
        with torch.no_grad():
            self._take_(found)
            self._tails.fill_(1 / df)
        return found

    @abstractmethod
    def _scale(self) -> Tensor:
        """The scales, (D,) or a scalar."""

    @abstractmethod
    def _take_(self, scales: Tensor) -> None:
        """Takes over scales (D,) in float64, in place."""

    @abstractmethod
    def _residuals(self, outputs: Tensor, target: Tensor) -> list[Residuals]:
        """The residuals of every target that has a scale of its own."""


def mean_degrees(losses: Tensor) -> float:
    """df with 1 / df = sum_i w_i / df_i, where w_i ~ exp(-loss_i): the posterior mean of 1 / df, all alike beforehand.

    Few rows hold few of those that are far off, and say little of how many there will be: then this stays between what
    they allow, where the likeliest df is often inf. With many rows it is the likeliest. Above `GAUSSIAN` it is inf.

    Args:
        losses: -log p of all targets together under each of `DEGREES`.
    """
    inverse = losses.new_tensor([1 / df for df in DEGREES], dtype=torch.double)
    found = float((torch.softmax(-losses.double(), 0) * inverse).sum())
    return 1 / found if found > 1 / GAUSSIAN else math.inf  # inf, too, where losses are not finite


def settled_scale(part: Residuals, before: Tensor, near: Tensor | None = None, df: float = math.inf) -> Tensor:
    """The likeliest scale of noise for what is known of residuals; `before` where nothing is.

    Args:
        near, df: as for `likeliest_scale`.
    """
    residuals, sizes, sds = part
    known = torch.isfinite(residuals).all(0)
    if not bool(known.any()):
        return before
    largest = sizes[..., known].double().square().mean().sqrt()
    found = likeliest_scale(residuals[:, known], largest, None if sds is None else sds[:, known], df, near)
    return found.detach().cpu()


def shown(values: Tensor) -> str:
    """One number, or a list of them, in short."""
    return ", ".join(f"{one:.4g}" for one in values.reshape(-1).tolist()).join("[]" if values.ndim else ("", ""))


def gaussian_divergence(taught: RegressionPrediction, mean: Tensor, sd: Tensor) -> Tensor:
    """KL[N(m, v) || N(mean, sd^2)] = log sd - log(v) / 2 + (v + (m - mean)^2) / (2 sd^2) - 1/2, summed per datum.

    Args:
        taught: what a teacher predicts; m is its mean, v its total variance.
    """
    check_taught(taught.mean, mean)
    sd, m, v = sd.to(mean), taught.mean.to(mean), taught.total.to(mean)
    return per_datum(sd.log() - 0.5 * v.log() + 0.5 * (v + (m - mean).square()) / sd.square() - 0.5)


def gaussian_nll(mean: Tensor, sd: Tensor, target: Tensor) -> Tensor:
    """(y - m)^2 / (2 sd^2) + log sd + log(2 pi) / 2, summed per datum; targets in the type of the mean.

    A target that is NaN adds 0, whatever the mean.
    """
    target, sd = target.to(mean.dtype), sd.to(mean.dtype)
    known = ~target.isnan()
    residual = torch.where(known, target, mean.detach()) - mean  # what is left out has gradient 0, not NaN
    nll = 0.5 * (residual / sd).square() + sd.log() + _HALF_LOG_2PI
    return per_datum(torch.where(known, nll, torch.zeros_like(nll)))
