"""The likelihood of real numbers with the same Gaussian noise everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_positive, check_size
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.likelihoods.base import (
    Likelihood,
    along,
    by_target,
    check_draws,
    check_shape,
    check_tensors,
    normals_like,
    random_signs,
    unit_scores,
)
from bnn.likelihoods.noise import RealNoise, Residuals, gaussian_divergence, shown
from bnn.likelihoods.predictions import RegressionPrediction, total_variance


class Gaussian(RealNoise):
    """Real targets with the same noise at every input: -log N(target; output, sd^2), summed per datum.

    Where the noise is learned, settling it may find tails that are heavier (`RealNoise`), of the same sd.
    Targets that are NaN are unknown: they add nothing, to the gradient neither.

    Args:
        sd: the standard deviation of the noise, one number or one per target. What is learned begins elsewhere in
            `bnn.fit`, at the residuals of the network at hand, unless it was settled by a training before.
        learn: whether it is a parameter, `_sd`, stored through softplus; `ELBO.parameters()` holds it.
        targets: with more than one, each has an sd of its own, and outputs are (N, targets, ...).
        tails: whether settling may find heavier tails; False: the noise stays Gaussian, as it does where it is held.

    >>> Gaussian(sd=2.0)(torch.zeros(1, 1), torch.ones(1, 1))  # log 2 + (1 / 2)^2 / 2 + log(2 pi) / 2
    tensor([1.7371], grad_fn=<...>)
    """

    name = "gaussian"
    noise = ("_sd", "_tails")
    starts = True
    _sd: Tensor

    def __init__(
        self, sd: float | Sequence[float] = 1.0, learn: bool = True, targets: int = 1, tails: bool = True
    ) -> None:
        super().__init__(tails)
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

    def _scale(self) -> Tensor:
        return self.sd()

    def _take_(self, scales: Tensor) -> None:
        self._sd.copy_(inverse_softplus(scales).to(self._sd).reshape(self._sd.shape))

    def _residuals(self, outputs: Tensor, target: Tensor) -> list[Residuals]:
        check_draws(outputs)
        check_shape(target, outputs.shape[1:])
        along(self.sd(), outputs, 2)  # as many as there are
        y, apart = target.to(outputs), self._sd.ndim
        return [Residuals(*pair) for pair in zip(by_target(y - outputs, apart), by_target(y[None], apart), strict=True)]

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for means (N, ...) and targets of the same shape."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        output = at_least_float32(output)
        return self.nll(output, along(self.sd(), output, 1), target)

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
        """The outputs and the sd, both (K, N, ...); the noise of a draw is Gaussian where df is inf."""
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
        gaussian = {} if self.tails else {"tails": False}
        return {"sd": self.sd().tolist(), "learn": self.settles, **several, **gaussian}

    def pooled(self, others: Sequence[Gaussian]) -> Gaussian:
        """One whose variances are the means of theirs, and whose 1 / df is."""
        sds = torch.stack([other.sd().detach().double().cpu() for other in others]).square().mean(0).sqrt()
        mean = Gaussian(sd=sds.tolist(), targets=max(1, sds.numel()), tails=self.tails)
        mean._tails.copy_(torch.stack([other._tails for other in others]).mean())
        mean.settled = all(other.settled for other in others)
        return mean

    def extra_repr(self) -> str:
        return f"sd={shown(self.sd())}, learn={self.settles}{self._shown_tails()}"
