"""Likelihoods of real numbers, with noise that is the same everywhere or predicted by the network."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_positive
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.likelihoods.base import Likelihood, check_draws, check_shape, check_tensors, per_datum

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class _RegressionPrediction(NamedTuple):
    mean: Tensor
    total: Tensor  # aleatoric + epistemic
    aleatoric: Tensor  # mean variance of the noise
    epistemic: Tensor  # variance, over the draws, of the mean


class RegressionPrediction(_RegressionPrediction):
    """What K draws say about real numbers: `mean`, and total, aleatoric and epistemic variance, all (N, ...)."""

    samples: Tensor | None = None  # the outputs (K, N, ...) of the draws, where asked for


class Gaussian(Likelihood):
    """Real targets with the same noise everywhere: -log N(target; output, sd^2), summed per datum.

    Args:
        sd: the standard deviation of the noise; where learning starts.
        learn: whether it is a parameter, `_sd`, stored through softplus; `ELBO.parameters()` holds it.

    >>> Gaussian(sd=2.0)(torch.zeros(1, 1), torch.ones(1, 1))  # log 2 + (1 / 2)^2 / 2 + log(2 pi) / 2
    tensor([1.7371], grad_fn=<...>)
    """

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
        return _gaussian_nll(at_least_float32(output), self.sd(), target)

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, ...), from K draws of the mean (K, N, ...)."""
        check_draws(outputs)
        outputs = at_least_float32(outputs)
        return _moments(outputs, self.sd().square().to(outputs.dtype).expand_as(outputs))

    def extra_repr(self) -> str:
        return f"sd={self.sd().item():.4g}, learn={isinstance(self._sd, nn.Parameter)}"


class HeteroscedasticGaussian(Likelihood):
    """Real targets whose noise the network predicts: -log N(target; mean, sd^2), summed per datum.

    The output has 2 D values along dimension 1: D means, then D raw values of sd = min_sd + softplus(raw).

    Args:
        min_sd: keeps a perfectly fitted target from an infinite likelihood.

    >>> HeteroscedasticGaussian()(torch.zeros(5, 2), torch.zeros(5, 1)).shape
    torch.Size([5])
    """

    def __init__(self, min_sd: float = 1e-3) -> None:
        super().__init__()
        check_positive("min_sd", min_sd)
        self.min_sd = min_sd

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for an output (N, 2 D, ...) and targets (N, D, ...)."""
        check_tensors(output, target)
        mean, sd = self.split(output, dim=1)
        check_shape(target, mean.shape)
        return _gaussian_nll(mean, sd, target)

    def split(self, output: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each with D values along `dim`, from an output with 2 D."""
        if output.ndim <= dim or output.shape[dim] % 2 or not output.shape[dim]:
            raise ValueError(
                f"output has shape {tuple(output.shape)}, expected 2 D values along dimension {dim}: D means, then D "
                "raw standard deviations; give the last layer twice as many outputs as there are targets"
            )
        mean, raw = at_least_float32(output).chunk(2, dim)
        return mean, self.min_sd + F.softplus(raw)

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, D, ...), from K draws of the output (K, N, 2 D, ...)."""
        mean, sd = self.split(outputs, dim=2)
        return _moments(mean, sd.square())

    def extra_repr(self) -> str:
        return f"min_sd={self.min_sd:g}"


def _gaussian_nll(mean: Tensor, sd: Tensor, target: Tensor) -> Tensor:
    """(y - m)^2 / (2 sd^2) + log sd + log(2 pi) / 2, summed per datum; targets in the type of the mean."""
    sd = sd.to(mean.dtype)
    return per_datum(0.5 * ((target.to(mean.dtype) - mean) / sd).square() + sd.log() + _HALF_LOG_2PI)


def _moments(means: Tensor, variances: Tensor) -> RegressionPrediction:
    """The law of total variance over the K draws of (mean, variance), dimension 0."""
    aleatoric = variances.mean(0)
    epistemic = means.var(0, correction=0) if means.numel() else torch.zeros_like(aleatoric)  # no inputs, no warning
    return RegressionPrediction(means.mean(0), aleatoric + epistemic, aleatoric, epistemic)
