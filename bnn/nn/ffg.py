"""FFG-W: every weight has its own mean and standard deviation (mean-field variational inference)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn.functional.gaussian import kl_diagonal, standard_normal
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive, safe_sqrt, without_autocast
from bnn.nn.base import KL, BayesianLayer, Start, Weights, join_draws
from bnn.nn.draw import Draw
from bnn.nn.options import Options, WeightSd, check_bool, check_number, check_positive, check_weight_sd, neal


@dataclass(frozen=True)
class FFGOptions(Options):
    """Options of `ffg`."""

    prior_mean: float = 0.0
    prior_weight_sd: WeightSd = 1.0  # "neal": 1 / sqrt(fan-in without the bias)
    prior_bias_sd: float = 1.0
    init_sd: float = 1e-4  # nearly deterministic: training first finds the mean, as in the paper
    max_sd: float | None = None  # the paper caps it at 0.1 against underfitting
    local_reparameterization: bool = True  # draws outputs instead of weights: less variance in the gradients
    nonlinearity_scale: float = 1.0  # multiplies the prior sd of the weights
    sqrt_width_scaling: bool = False  # divides the prior sds by sqrt(d_in), the bias counted

    def __post_init__(self) -> None:
        check_number("prior_mean", self.prior_mean)
        check_weight_sd("prior_weight_sd", self.prior_weight_sd)
        check_positive("prior_bias_sd", self.prior_bias_sd)
        check_positive("init_sd", self.init_sd)
        check_positive("max_sd", self.max_sd, none=True)
        check_bool("local_reparameterization", self.local_reparameterization)
        check_positive("nonlinearity_scale", self.nonlinearity_scale)
        check_bool("sqrt_width_scaling", self.sqrt_width_scaling)


class FFG(BayesianLayer):
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

    @classmethod
    def start(cls, weights: Weights, options: FFGOptions) -> Start:
        sd = min(options.init_sd, options.max_sd or math.inf)
        raw = inverse_softplus(torch.tensor(sd, dtype=torch.double)).item()
        tensors = {"weight_mean": weights.weight.clone(), "_weight_sd": torch.full_like(weights.weight, raw)}
        if weights.bias is not None:
            tensors |= {"bias_mean": weights.bias.clone(), "_bias_sd": torch.full_like(weights.bias, raw)}
        return Start(trained=tensors, fixed={}, objects={})

    def sds(self) -> Weights:
        """The standard deviations, in the shapes of weight and bias."""
        cap = self.options.max_sd
        return Weights(positive(self._weight_sd, cap), positive(self._bias_sd, cap) if self.has_bias else None)

    def mean_weights(self) -> Weights:
        return Weights(self.weight_mean, self.bias_mean if self.has_bias else None)

    def sample_weights(self, draw: Draw) -> Weights:
        mean, sds = self.mean_weights(), self.sds()
        weight = self._sample(draw, "weight", mean.weight, sds.weight)
        bias = None if mean.bias is None or sds.bias is None else self._sample(draw, "bias", mean.bias, sds.bias)
        return Weights(weight, bias)

    def _sample(self, draw: Draw, name: str, mean: Tensor, sd: Tensor) -> Tensor:
        return mean + (sd * draw.normals(self, name, *mean.shape, like=sd)).to(mean.dtype)

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        by_output = self.options.local_reparameterization and not (self.repeats or draw.at_mean)
        if not by_output or draw.seeds_of(self) is not None:
            return self.dense_output(input, draw)
        draw.drew_rows(self)
        return self.local_output(input.expand(draw.count, *input.shape[1:]))

    def local_output(self, input: Tensor) -> Tensor:
        """Outputs (K, ...) drawn from their marginals N(x m, x^2 s^2), independently for every row of the input."""
        sds = self.sds()
        mean = self._run_all(input, self.mean_weights())
        with without_autocast(input):  # squares of small sds vanish in half precision
            squares = Weights(sds.weight.square(), None if sds.bias is None else sds.bias.square())
            variance = self._run_all(at_least_float32(input).square(), squares)
        return mean + (safe_sqrt(variance) * standard_normal(*mean.shape, like=variance)).to(mean.dtype)

    def _run_all(self, input: Tensor, weights: Weights) -> Tensor:
        """The plain layer on K draws (K, ...) with the same weights."""
        if len(input) == 1:
            return self.run(input[0], *weights)[None]
        return join_draws([self.run(x, *weights)[None] for x in input])

    def prior_sds(self) -> tuple[float, float]:
        """The prior standard deviations of weight and bias."""
        options, d_in = self.options, self.d_in
        weight_sd = neal(options.prior_weight_sd, d_in - self.has_bias) * options.nonlinearity_scale
        width = math.sqrt(d_in) if options.sqrt_width_scaling else 1.0
        return weight_sd / width, options.prior_bias_sd / width

    def kl_parts(self) -> KL:
        weight_sd, bias_sd = self.prior_sds()
        sds = self.sds()
        kl = kl_diagonal(at_least_float32(self.weight_mean), sds.weight, self.options.prior_mean, weight_sd)
        if sds.bias is not None:
            kl = kl + kl_diagonal(at_least_float32(self.bias_mean), sds.bias, self.options.prior_mean, bias_sd)
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        cap = "" if self.options.max_sd is None else f", max_sd={self.options.max_sd:g}"
        return f"family=ffg, prior_sd={self.prior_sds()[0]:.3g}{cap}"
