"""Gaussian noise of several targets, each with an sd of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.likelihoods import RegressionPrediction
from bnn.likelihoods.base import Likelihood, check_draws, check_shape, check_tensors, per_datum

SMALLEST = 0.2  # relative to what training found
START = 0.3  # of the targets' sd: training moves it down as it learns to explain them


class TargetNoise(Likelihood):
    """Real targets (N, D): -sum_d log N(y_d; output_d, sd_d^2), with learned sds that are the same at every input.

    >>> TargetNoise(2)(torch.zeros(3, 2), torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    _sd: Tensor

    def __init__(self, targets: int) -> None:
        super().__init__()
        raw = inverse_softplus(torch.full((targets,), START, dtype=torch.double)).float()
        self._sd = nn.Parameter(raw)

    def sd(self) -> Tensor:
        """The sds of the noise (D,)."""
        return positive(self._sd)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for means (N, D) and targets (N, D)."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        sd = self.sd()
        standardised = (target - at_least_float32(output)) / sd
        return per_datum(0.5 * standardised.square() + sd.log() + 0.5 * math.log(2 * math.pi))

    def refit_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the sds, in place, to what the prediction as a whole makes likeliest: the mixture over K draws.

        The objective averages the log-likelihood of single draws, so its noise holds the spread of the draws as well;
        a prediction that adds the two would count that spread twice.

        Args:
            outputs: means of K draws (K, N, D) at inputs with targets (N, D).
        """
        factors = torch.linspace(math.log(SMALLEST), 0.0, 100, dtype=torch.double).exp()
        deviations = (target - outputs).double()
        best = []
        for d, sd in enumerate(self.sd().detach().double().cpu()):
            scores = [_mixture_log_likelihood(deviations[..., d], sd * factor) for factor in factors]
            best.append(sd * factors[int(torch.stack(scores).argmax())])
        with torch.no_grad():
            self._sd.copy_(inverse_softplus(torch.stack(best)).to(self._sd))

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, D), from K draws of the mean (K, N, D)."""
        check_draws(outputs)
        mean, epistemic = outputs.mean(0), outputs.var(0, correction=0)
        aleatoric = self.sd().square().to(mean.dtype).expand_as(mean)
        return RegressionPrediction(mean, aleatoric + epistemic, aleatoric, epistemic)

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the sds, both (K, N, D)."""
        return outputs, self.sd().detach().to(outputs).expand_as(outputs)


def _mixture_log_likelihood(deviations: Tensor, sd: Tensor) -> Tensor:
    """sum_n log 1/K sum_k N(deviation_kn; 0, sd^2), up to a constant, for deviations (K, N)."""
    return (-0.5 * (deviations / sd).square() - sd.log()).logsumexp(0).sum()
