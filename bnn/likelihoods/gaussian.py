"""The likelihood of real numbers with the same Gaussian noise everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_positive, check_size
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.functional.noise import likeliest_scale
from bnn.likelihoods.base import (
    Likelihood,
    along,
    by_target,
    check_draws,
    check_shape,
    check_taught,
    check_tensors,
    normals_like,
    per_datum,
    random_signs,
    unit_scores,
)
from bnn.likelihoods.predictions import RegressionPrediction, total_variance

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Gaussian(Likelihood):
    """Real targets with the same noise at every input: -log N(target; output, sd^2), summed per datum.

    Targets that are NaN are unknown: they add nothing, to the gradient neither.

    Args:
        sd: the standard deviation of the noise, one number or one per target. What is learned begins elsewhere in
            `bnn.fit`, at the residuals of the network at hand, unless it was settled by a training before.
        learn: whether it is a parameter, `_sd`, stored through softplus; `ELBO.parameters()` holds it.
        targets: with more than one, each has an sd of its own, and outputs are (N, targets, ...).

    >>> Gaussian(sd=2.0)(torch.zeros(1, 1), torch.ones(1, 1))  # log 2 + (1 / 2)^2 / 2 + log(2 pi) / 2
    tensor([1.7371], grad_fn=<...>)
    """

    name = "gaussian"
    task = "regression"
    noise = ("_sd",)
    starts = True
    _sd: Tensor

    def __init__(self, sd: float | Sequence[float] = 1.0, learn: bool = True, targets: int = 1) -> None:
        super().__init__()
        check_bool("learn", learn)
        check_size("targets", targets)
        given = [sd] if isinstance(sd, int | float) else list(sd)
        for one in given:
            check_positive("sd", one)
        if len(given) not in (1, targets):
            raise ValueError(f"sd must be one number, or one for each of {targets} targets; got {sd!r}")
        sds = torch.tensor(given, dtype=torch.double).expand(targets)
        raw = inverse_softplus(sds if targets > 1 else sds[0]).to(torch.get_default_dtype())
        if learn:
            self._sd = nn.Parameter(raw)
        else:
            self.register_buffer("_sd", raw)

    @classmethod
    def of(cls, targets: int = 1) -> Gaussian:
        """One sd per target, learned."""
        return cls(targets=targets)

    def sd(self) -> Tensor:
        """The standard deviation of the noise, a scalar; of several targets (D,)."""
        return positive(self._sd)

    @property
    def settles(self) -> bool:
        """Unless the sd is held."""
        return isinstance(self._sd, nn.Parameter)

    def levels(self) -> dict[str, list[float]]:
        """{"sd": [...]}."""
        return {"sd": self.sd().reshape(-1).tolist()}

    def settle_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets every sd, in place; of one draw to the rms of its residuals. See `Likelihood.settle_`."""
        if not self.settles:
            return
        check_draws(outputs)
        check_shape(target, outputs.shape[1:])
        along(self.sd(), outputs, 2)  # as many as there are
        y = target.to(outputs)
        pairs = zip(by_target(y - outputs, self._sd.ndim), by_target(y[None], self._sd.ndim), strict=True)
        before = self.sd().detach().double().cpu().reshape(-1)
        found = [settled_scale(r, one, size=y) for (r, y), one in zip(pairs, before, strict=True)]
        with torch.no_grad():
            self._sd.copy_(inverse_softplus(torch.stack(found)).to(self._sd).reshape(self._sd.shape))
        self.settled = True

    def learned_(self, values: Mapping[str, Any]) -> None:
        """Takes over the sds of a trained network, in place."""
        super().learned_(values)
        self.settled = True

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for means (N, ...) and targets of the same shape."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        output = at_least_float32(output)
        return gaussian_nll(output, along(self.sd(), output, 1), target)

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, ...), from K draws of the mean (K, N, ...)."""
        check_draws(outputs)
        outputs = at_least_float32(outputs)
        return total_variance(outputs, along(self.sd(), outputs, 2).square().expand_as(outputs))

    def point(self, output: Tensor) -> Tensor:
        """The mean is the output."""
        return output

    def from_gaussian(self, mean: Tensor, variance: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, ...), where the mean of the target is N(mean, variance)."""
        aleatoric = along(self.sd(), variance, 1).square().expand_as(variance)
        return RegressionPrediction(mean, aleatoric + variance, aleatoric, variance)

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the sd, both (K, N, ...)."""
        return outputs, along(self.sd(), outputs, 2).expand_as(outputs)

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """KL[N(m, v) || N(output, sd^2)] (N,), with mean m and variance v of what the teachers predict.

        Without a likelihood of theirs, they have the student's noise, which then does not learn from them: for one
        teacher that is |m - output|^2 / (2 sd^2). With one, the noise learns, too. There is no temperature.
        """
        output, teachers = at_least_float32(output), at_least_float32(teachers)
        sd = along(self.sd().detach() if likelihood is None else self.sd(), output, 1)
        if likelihood is None:
            taught = total_variance(teachers, sd.square().expand_as(teachers))
        else:
            taught = likelihood.predictive(teachers)
        return gaussian_divergence(taught, output, sd)

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Normals over the sd."""
        normals = normals_like(at_least_float32(output), generator)
        return normals / along(self.sd().detach(), normals, 1)

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """1 / sd along each target."""
        output = at_least_float32(output)
        size = torch.ones_like(output) / along(self.sd().detach(), output, 1)
        return unit_scores(size, random_signs(output, generator))

    def options(self) -> dict[str, Any]:
        several = {"targets": len(self._sd)} if self._sd.ndim else {}
        return {"sd": self.sd().tolist(), "learn": self.settles, **several}

    def pooled(self, others: Sequence[Gaussian]) -> Gaussian:
        """One whose variances are the means of theirs."""
        sds = torch.stack([other.sd().detach().double().cpu() for other in others]).square().mean(0).sqrt()
        mean = Gaussian(sd=sds.tolist(), targets=max(1, sds.numel()))
        mean.settled = all(other.settled for other in others)
        return mean

    def extra_repr(self) -> str:
        return f"sd={shown(self.sd())}, learn={self.settles}"


def settled_scale(residuals: Tensor, before: Tensor, size: Tensor, sds: Tensor | None = None) -> Tensor:
    """The likeliest scale of noise for what is known of residuals (K, n); `before` where nothing is.

    Args:
        size: values (..., n) that say how large the residuals could be.
        sds: as for `likeliest_scale`.
    """
    known = torch.isfinite(residuals).all(0)
    if not bool(known.any()):
        return before
    largest = size[..., known].double().square().mean().sqrt()
    found = likeliest_scale(residuals[:, known], largest, None if sds is None else sds[:, known])
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
