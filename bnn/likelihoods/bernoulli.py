"""The likelihood of labels that are 0 or 1, several per datum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.base import (
    Likelihood,
    check_draws,
    check_shape,
    check_taught,
    check_tensors,
    nonnegative,
    per_datum,
    random_signs,
    unit_scores,
)
from bnn.likelihoods.predictions import ClassPrediction, information


class Bernoulli(Likelihood):
    """Labels that are 0 or 1, several per datum: -[y log p + (1 - y) log(1 - p)] with p = sigmoid(output), summed.

    Args:
        pos_weight: multiplies the log-likelihood of ones; broadcasts against the output, (C,) for an output (N, C).

    >>> Bernoulli()(torch.zeros(2, 3), torch.tensor([[0, 1, 1], [0, 0, 0]]))
    tensor([2.0794, 2.0794])
    """

    name = "bernoulli"
    task = "multilabel"
    logits = True
    pos_weight: Tensor | None

    def __init__(self, pos_weight: float | Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("pos_weight", nonnegative("pos_weight", pos_weight))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for logits (N, ...) and targets, 0 or 1 of any type, of the same shape."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        output = at_least_float32(output)
        target = target.to(output.dtype)
        if _holds((target < 0) | (target > 1)):
            raise ValueError(f"targets run from {target.min():g} to {target.max():g}, expected 0 and 1")
        weight = self._weight_like(output)
        return per_datum(F.binary_cross_entropy_with_logits(output, target, reduction="none", pos_weight=weight))

    def _weight_like(self, output: Tensor) -> Tensor | None:
        if self.pos_weight is None:
            return None
        try:
            return self.pos_weight.to(output).expand_as(output)
        except RuntimeError:
            shapes = f"{tuple(self.pos_weight.shape)} does not broadcast to the output's {tuple(output.shape)}"
            raise ValueError(f"pos_weight {shapes}") from None

    def predictive(self, outputs: Tensor) -> ClassPrediction:
        """Mean probability of a one and uncertainties, all (N, ...), from K draws of the logits (K, N, ...)."""
        check_draws(outputs)
        outputs = at_least_float32(outputs)
        mean, *uncertainty = information(torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)]))
        return ClassPrediction(mean[1], *uncertainty)

    def point(self, output: Tensor) -> Tensor:
        """The probabilities of ones (N, ...)."""
        return at_least_float32(output).sigmoid()

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """sigmoid(output) - y for labels y drawn from it; `pos_weight` does not count."""
        p = at_least_float32(output).sigmoid()
        device = p.device if generator is None else generator.device
        return p - torch.bernoulli(p.to(device), generator=generator).to(p)

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """sqrt(p (1 - p)) along each label."""
        p = at_least_float32(output).sigmoid()
        return unit_scores((p * (1 - p)).sqrt(), random_signs(p, generator))

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """T^2 KL[mean of Bernoulli(sigmoid(teachers / T)) || Bernoulli(sigmoid(output / T))] (N,), labels summed;
        `pos_weight` does not count.
        """
        check_taught(teachers[0], output)
        logits = at_least_float32(output) / temperature
        p = (at_least_float32(teachers) / temperature).sigmoid().mean(0).to(logits)
        cross = F.binary_cross_entropy_with_logits(logits, p, reduction="none")
        return temperature**2 * per_datum(cross + torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))

    def gaps(self, outputs: Tensor, target: Tensor) -> Tensor:
        """0, and the other label's logit minus that of what happened: (K, M, 2) for logits (K, N, ...), M labels."""
        self(outputs[0], target)  # whatever is wrong with them, it says
        ones = target.to(outputs.dtype)
        if not bool(((ones == 0) | (ones == 1)).all()):
            raise ValueError("a temperature is fitted to labels that are 0 or 1; some of these lie between: y.round()?")
        others = (at_least_float32(outputs) * (1 - 2 * ones)).flatten(1)  # the logit of a zero is 0
        return torch.stack([torch.zeros_like(others), others], -1)

    def options(self) -> dict[str, Any]:
        return {"pos_weight": None if self.pos_weight is None else self.pos_weight.tolist()}


def _holds(condition: Tensor) -> bool:
    """Whether a condition holds anywhere, where looking is free: not on a GPU, nor inside vmap or torch.compile."""
    if condition.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return bool(condition.any())
    except RuntimeError:  # vmap: the values of a batched tensor cannot steer the program
        return False
