"""The likelihood of real numbers with Gaussian noise that the network predicts."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from bnn._common.checks import check_positive
from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.base import Likelihood, check_shape, check_tensors
from bnn.likelihoods.gaussian import gaussian_nll
from bnn.likelihoods.predictions import RegressionPrediction, total_variance


class HeteroscedasticGaussian(Likelihood):
    """Real targets whose noise the network predicts: -log N(target; mean, sd^2), summed per datum.

    The output has 2 D values along dimension 1: D means, then D raw values of sd = min_sd + softplus(raw).

    Args:
        min_sd: keeps a perfectly fitted target from an infinite likelihood.

    >>> import torch
    >>> HeteroscedasticGaussian()(torch.zeros(5, 2), torch.zeros(5, 1)).shape
    torch.Size([5])
    """

    name = "heteroscedastic"
    task = "regression"
    outputs_per_target = 2

    def __init__(self, min_sd: float = 1e-3) -> None:
        super().__init__()
        check_positive("min_sd", min_sd)
        self.min_sd = min_sd

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for an output (N, 2 D, ...) and targets (N, D, ...)."""
        check_tensors(output, target)
        mean, sd = self.split(output, dim=1)
        check_shape(target, mean.shape)
        return gaussian_nll(mean, sd, target)

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
        return total_variance(mean, sd.square())

    def point(self, output: Tensor) -> Tensor:
        """The means (N, D, ...)."""
        return self.split(output)[0]

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and sds, both (K, N, D, ...)."""
        return self.split(outputs, dim=2)

    def options(self) -> dict[str, Any]:
        return {"min_sd": self.min_sd}

    def extra_repr(self) -> str:
        return f"min_sd={self.min_sd:g}"
