"""The likelihood of real numbers with Gaussian noise that the network predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from bnn._common.checks import check_positive, check_size
from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.base import (
    Likelihood,
    along,
    by_target,
    check_shape,
    check_tensors,
    normals_like,
    random_signs,
    unit_scores,
)
from bnn.likelihoods.noise import RealNoise, Residuals, gaussian_divergence, shown
from bnn.likelihoods.predictions import RegressionPrediction, total_variance

NODES = 32  # of the quadrature: softplus^2 is so smooth that it is exact to 1e-6 for raw values of sd 2


class HeteroscedasticGaussian(RealNoise):
    """Real targets whose noise the network predicts: -log N(target; mean, sd^2), summed per datum.

    The output has 2 D values along dimension 1: D means, then D raw values of sd = c (min_sd + softplus(raw)). The
    factor c is 1 until it is settled: networks that fit what they have seen too well predict sds that are too small.
    Settling it may also find tails that are heavier than a Gaussian's (`RealNoise`), of the same sds.
    Targets that are NaN are unknown: they add nothing, to the gradient neither.

    Args:
        min_sd: keeps a perfectly fitted target from an infinite likelihood.
        targets: with more than one, each has a factor of its own.
        tails: whether settling may find heavier tails; False: the noise stays Gaussian.

    >>> HeteroscedasticGaussian()(torch.zeros(5, 2), torch.zeros(5, 1)).shape
    torch.Size([5])
    """

    name = "heteroscedastic"
    outputs_per_target = 2
    noise = ("_factor", "_tails")
    _factor: Tensor

    def __init__(self, min_sd: float = 1e-3, targets: int = 1, tails: bool = True) -> None:
        super().__init__(tails)
        check_positive("min_sd", min_sd)
        check_size("targets", targets)
        self.min_sd = min_sd
        self.register_buffer("_factor", torch.ones(targets if targets > 1 else ()))

    @classmethod
    def of(cls, targets: int = 1) -> HeteroscedasticGaussian:
        """One factor per target."""
        return cls(targets=targets)

    def factor(self) -> Tensor:
        """What all predicted sds are multiplied by, a scalar; of several targets (D,)."""
        return self._factor

    def _scale(self) -> Tensor:
        return self._factor

    def _take_(self, scales: Tensor) -> None:
        self._factor.copy_(scales.reshape(self._factor.shape))

    def _residuals(self, outputs: Tensor, target: Tensor) -> list[Residuals]:
        mean, sd = self.split(outputs, dim=2)
        check_shape(target, mean.shape[1:])
        sd, apart = sd / along(self._factor, sd, 2), self._factor.ndim
        pairs = zip(by_target(target.to(mean) - mean, apart), by_target(sd, apart), strict=True)
        return [Residuals(r, torch.ones_like(s), s) for r, s in pairs]

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for an output (N, 2 D, ...) and targets (N, D, ...)."""
        check_tensors(output, target)
        mean, sd = self.split(output, dim=1)
        check_shape(target, mean.shape)
        return self.nll(mean, sd, target)

    def split(self, output: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each with D values along `dim`, from an output with 2 D."""
        if output.ndim <= dim or output.shape[dim] % 2 or not output.shape[dim]:
            raise ValueError(
                f"output has shape {tuple(output.shape)}, expected 2 D values along dimension {dim}: D means, then D "
                "raw standard deviations; give the last layer twice as many outputs as there are targets"
            )
        mean, raw = at_least_float32(output).chunk(2, dim)
        return mean, self._sds(raw, dim)

    def _sds(self, raw: Tensor, dim: int) -> Tensor:
        """c (min_sd + softplus(raw)), with targets along `dim`."""
        return along(self._factor, raw, dim) * (self.min_sd + F.softplus(raw))

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, D, ...), from K draws of the output (K, N, 2 D, ...)."""
        mean, sd = self.split(outputs, dim=2)
        return total_variance(mean, sd.square())

    def point(self, output: Tensor) -> Tensor:
        """The means (N, D, ...)."""
        return self.split(output)[0]

    def from_gaussian(self, mean: Tensor, variance: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, D, ...); E[sd^2] by Gauss-Hermite quadrature over every raw value."""
        mean, raw = mean.chunk(2, 1)
        epistemic, spread = variance.chunk(2, 1)
        nodes, weights = (torch.as_tensor(part).to(mean) for part in hermegauss(NODES))
        aleatoric = torch.zeros_like(mean)
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            aleatoric += weight * self._sds(raw + node * spread.sqrt(), 1).square()
        return RegressionPrediction(mean, aleatoric + epistemic, aleatoric, epistemic)

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and sds, both (K, N, D, ...); the noise of a draw is Gaussian where df is inf."""
        return self.split(outputs, dim=2)

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """KL[N(m, v) || N(mean, sd^2)] (N,), with mean m and variance v of what the teachers predict; no T."""
        return gaussian_divergence((likelihood or self).predictive(teachers), *self.split(output))

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n / sd, (1 - n^2) / sd dsd/draw) for normals n = (mean - y) / sd."""
        mean, sd = self.split(output)
        n = normals_like(mean, generator)
        return torch.cat([n / sd, (1 - n.square()) / sd * self._slope(output)], dim=1)

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """1 / sd along each mean, sqrt(2) / sd dsd/draw along each raw value: the Fisher information is diagonal."""
        sd = self.split(output)[1]
        size = torch.cat([1 / sd, 2**0.5 / sd * self._slope(output)], dim=1)
        return unit_scores(size, random_signs(size, generator))

    def _slope(self, output: Tensor) -> Tensor:
        """dsd / draw, (N, D, ...)."""
        raw = at_least_float32(output).chunk(2, 1)[1]
        return along(self._factor, raw, 1) * raw.sigmoid()

    def options(self) -> dict[str, Any]:
        several = {"targets": len(self._factor)} if self._factor.ndim else {}
        return {"min_sd": self.min_sd, **several, **({} if self.tails else {"tails": False})}

    def extra_repr(self) -> str:
        return f"min_sd={self.min_sd:g}, factor={shown(self._factor)}{self._shown_tails()}"
