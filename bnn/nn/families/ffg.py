"""FFG-W: every weight has its own mean and standard deviation (mean-field variational inference).

Storage 2 d_in d_out, time O(N K d_in d_out). Graves 2011; Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, *Weight
uncertainty in neural networks*. Choose it as the classical baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bnn._common.checks import check_choice, check_number
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive, safe_sqrt
from bnn.nn.base import Start, Weights
from bnn.nn.families.gaussian_weights import GaussianOptions
from bnn.nn.families.mean_field import MeanField
from bnn.nn.pruning import Prunable, mask_of


@dataclass(frozen=True)
class FFGOptions(GaussianOptions):
    """Options of `ffg`."""

    prior_mean: float | Literal["weights"] = 0.0  # "weights": the weights at hand, each its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prior_mean, str):
            check_choice("prior_mean", self.prior_mean, ["weights"])
        else:
            check_number("prior_mean", self.prior_mean)


class FFG(MeanField):
    """q(W) = prod N(mean_ij, sd_ij^2); the bias likewise."""

    family = "ffg"
    options_type = FFGOptions
    prunable = ("weight_mean", "_weight_sd")
    scales = ("_weight_sd", "_bias_sd")

    options: FFGOptions
    weight_mean: Tensor
    _weight_sd: Tensor
    bias_mean: Tensor
    _bias_sd: Tensor
    _prior_mean: Tensor  # with prior_mean="weights" only
    _prior_bias_mean: Tensor

    @classmethod
    def start(cls, weights: Weights, options: FFGOptions) -> Start:
        raw = inverse_softplus(torch.tensor(options.start_sd(), dtype=torch.double)).item()
        tensors = {"weight_mean": weights.weight.clone(), "_weight_sd": torch.full_like(weights.weight, raw)}
        if weights.bias is not None:
            tensors |= {"bias_mean": weights.bias.clone(), "_bias_sd": torch.full_like(weights.bias, raw)}
        return Start(trained=tensors, fixed=_prior(weights) if options.prior_mean == "weights" else {}, objects={})

    def sds(self) -> Weights:
        cap, mask = self.options.max_sd, self.weight_mask()
        weight = positive(self._weight_sd, cap)
        weight = weight if mask is None else torch.where(mask, weight, 0)
        return Weights(weight, positive(self._bias_sd, cap) if self.has_bias else None)

    def weight_mask(self) -> Tensor | None:
        return mask_of(self, "_weight_sd")

    def prune_scores(self, inputs: Weights | None) -> list[Prunable]:
        """|mean| / sd; by the output, |mean| rms(x) relative to the rms of all that the layer's weights add to it."""
        mean = at_least_float32(self.kept("weight_mean")).abs()
        if inputs is None:
            return [Prunable(self.prunable, mean / positive(self._weight_sd, self.options.max_sd))]
        squares = (mean.square() + self.sds().weight.square()) * inputs.weight.square()
        return [Prunable(self.prunable, mean * inputs.weight / safe_sqrt(squares.sum()))]

    def mean_weights(self) -> Weights:
        return Weights(self.kept("weight_mean"), self.bias_mean if self.has_bias else None)

    def prior_means(self) -> tuple[float | Tensor, float | Tensor]:
        given = self.options.prior_mean
        if not isinstance(given, str):
            return given, given
        return at_least_float32(self._prior_mean), at_least_float32(self._prior_bias_mean) if self.has_bias else 0.0

    def summary(self) -> str:
        around = ", prior_mean=weights" if self.options.prior_mean == "weights" else ""
        return f"family=ffg, {self.about_sds()}{around}"


def _prior(weights: Weights) -> dict[str, Tensor]:
    """A prior around the weights at hand: where they are kept."""
    bias = {} if weights.bias is None else {"_prior_bias_mean": weights.bias.clone()}
    return {"_prior_mean": weights.weight.clone(), **bias}
