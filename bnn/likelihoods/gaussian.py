"""The likelihood of real numbers with the same Gaussian noise everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_positive
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.likelihoods.base import (
    Likelihood,
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
    """Real targets with the same noise everywhere: -log N(target; output, sd^2), summed per datum.

    Args:
        sd: the standard deviation of the noise; where learning starts.
        learn: whether it is a parameter, `_sd`, stored through softplus; `ELBO.parameters()` holds it.

    >>> Gaussian(sd=2.0)(torch.zeros(1, 1), torch.ones(1, 1))  # log 2 + (1 / 2)^2 / 2 + log(2 pi) / 2
    tensor([1.7371], grad_fn=<...>)
    """

    name = "gaussian"
    task = "regression"
    _sd: Tensor

    def __init__(self, sd: float = 1.0, learn: bool = True) -> None:
        super().__init__()
        check_positive("sd", sd)
        check_bool("learn", learn)
        raw = inverse_softplus(torch.tensor(sd, dtype=torch.double)).to(torch.get_default_dtype())
        if learn:
            self._sd = nn.Parameter(raw)
        else:
            self.register_buffer("_sd", raw)

    def sd(self) -> Tensor:
        """The standard deviation of the noise, a scalar."""
        return positive(self._sd)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for means (N, ...) and targets of the same shape."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        return gaussian_nll(at_least_float32(output), self.sd(), target)

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, ...), from K draws of the mean (K, N, ...)."""
        check_draws(outputs)
        outputs = at_least_float32(outputs)
        return total_variance(outputs, self.sd().square().to(outputs.dtype).expand_as(outputs))

    def point(self, output: Tensor) -> Tensor:
        """The mean is the output."""
        return output

    def from_gaussian(self, mean: Tensor, variance: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, ...), where the mean of the target is N(mean, variance)."""
        aleatoric = self.sd().square().to(variance).expand_as(variance)
        return RegressionPrediction(mean, aleatoric + variance, aleatoric, variance)

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the sd, both (K, N, ...)."""
        return outputs, self.sd().to(outputs).expand_as(outputs)

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """KL[N(m, v) || N(output, sd^2)] (N,), with mean m and variance v of what the teachers predict.

        Without a likelihood of theirs, they have the student's noise, which then does not learn from them: for one
        teacher that is |m - output|^2 / (2 sd^2). With one, the noise learns, too. There is no temperature.
        """
        sd = self.sd().detach() if likelihood is None else self.sd()
        if likelihood is None:
            taught = total_variance(at_least_float32(teachers), sd.square().expand_as(teachers))
        else:
            taught = likelihood.predictive(teachers)
        return gaussian_divergence(taught, at_least_float32(output), sd)

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Normals over the sd."""
        return normals_like(at_least_float32(output), generator) / self.sd().detach().to(output.device)

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """1 / sd along each target."""
        output = at_least_float32(output)
        return unit_scores(torch.ones_like(output) / self.sd().detach().to(output), random_signs(output, generator))

    def options(self) -> dict[str, Any]:
        return {"sd": self.sd().item(), "learn": isinstance(self._sd, nn.Parameter)}

    def pooled(self, others: Sequence[Gaussian]) -> Gaussian:
        """One whose variance is the mean of theirs."""
        return Gaussian(sd=sum(other.sd().item() ** 2 for other in others) ** 0.5 / len(others) ** 0.5)

    def extra_repr(self) -> str:
        return f"sd={self.sd().item():.4g}, learn={isinstance(self._sd, nn.Parameter)}"


def gaussian_divergence(taught: RegressionPrediction, mean: Tensor, sd: Tensor) -> Tensor:
    """KL[N(m, v) || N(mean, sd^2)] = log sd - log(v) / 2 + (v + (m - mean)^2) / (2 sd^2) - 1/2, summed per datum.

    Args:
        taught: what a teacher predicts; m is its mean, v its total variance.
    """
    check_taught(taught.mean, mean)
    sd, m, v = sd.to(mean), taught.mean.to(mean), taught.total.to(mean)
    return per_datum(sd.log() - 0.5 * v.log() + 0.5 * (v + (m - mean).square()) / sd.square() - 0.5)


def gaussian_nll(mean: Tensor, sd: Tensor, target: Tensor) -> Tensor:
    """(y - m)^2 / (2 sd^2) + log sd + log(2 pi) / 2, summed per datum; targets in the type of the mean."""
    sd = sd.to(mean.dtype)
    return per_datum(0.5 * ((target.to(mean.dtype) - mean) / sd).square() + sd.log() + _HALF_LOG_2PI)
