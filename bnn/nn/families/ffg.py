"""FFG-W: every weight has its own mean and standard deviation (mean-field variational inference)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_bool, check_choice, check_number, check_positive
from bnn._engine.draw import Draw
from bnn.functional.cost import Size, by_row
from bnn.functional.gaussian import kl_diagonal
from bnn.functional.linalg import (
    at_least_float32,
    fits,
    inverse_softplus,
    largest,
    over,
    positive,
    safe_sqrt,
    without_autocast,
)
from bnn.nn.base import KL, BayesianLayer, Start, Weights
from bnn.nn.options import Options, WeightSd, check_weight_sd, neal
from bnn.nn.pruning import Prunable, mask_of


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
    sampling: str = (
        "auto"  # predictions: exact for every input; "weight": one function for the batch; "local": for every row
    )

    def __post_init__(self) -> None:
        check_number("prior_mean", self.prior_mean)
        check_weight_sd("prior_weight_sd", self.prior_weight_sd)
        check_positive("prior_bias_sd", self.prior_bias_sd)
        check_positive("init_sd", self.init_sd)
        check_positive("max_sd", self.max_sd, none=True)
        check_bool("local_reparameterization", self.local_reparameterization)
        check_positive("nonlinearity_scale", self.nonlinearity_scale)
        check_bool("sqrt_width_scaling", self.sqrt_width_scaling)
        check_choice("sampling", self.sampling, ["auto", "weight", "local"])


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
        cap, mask = self.options.max_sd, mask_of(self, "_weight_sd")
        weight = positive(self._weight_sd, cap)
        weight = weight if mask is None else torch.where(mask, weight, 0)
        return Weights(weight, positive(self._bias_sd, cap) if self.has_bias else None)

    @property
    def weight_sd(self) -> Tensor:
        """The standard deviations of the weight, in its shape."""
        return self.sds().weight

    @property
    def bias_sd(self) -> Tensor | None:
        """The standard deviations of the bias, or None."""
        return self.sds().bias

    def sds_and_cap(self) -> tuple[Tensor, float | None]:
        (weight, bias), mask = self.sds(), mask_of(self, "_weight_sd")
        weight = weight.flatten() if mask is None else weight[mask]  # what was pruned has none
        return (weight if bias is None else torch.cat([weight, bias])), self.options.max_sd

    def prune_scores(self, inputs: Weights | None) -> list[Prunable]:
        """|mean| / sd; by the output, |mean| rms(x) relative to the rms of all that the layer's weights add to it."""
        mean = at_least_float32(self.kept("weight_mean")).abs()
        if inputs is None:
            return [Prunable(self.prunable, mean / positive(self._weight_sd, self.options.max_sd))]
        squares = (mean.square() + self.sds().weight.square()) * inputs.weight.square()
        return [Prunable(self.prunable, mean * inputs.weight / safe_sqrt(squares.sum()))]

    def mean_weights(self) -> Weights:
        return Weights(self.kept("weight_mean"), self.bias_mean if self.has_bias else None)

    def sample_weights(self, draw: Draw) -> Weights:
        mean, sds = self._in_fast_layout(draw)
        noise = draw.normals(self, "weight", *self._fast_shape(), like=sds.weight)
        noise = noise.movedim(-1, 2) if noise.ndim > 3 else noise  # noise does not mind in which order it comes
        weight = _plus(mean.weight, sds.weight, noise)
        if mean.bias is None or sds.bias is None:
            return Weights(weight, None)
        return Weights(weight, _plus(mean.bias, sds.bias, draw.normals(self, "bias", *mean.bias.shape, like=sds.bias)))

    def _fast_shape(self) -> tuple[int, ...]:
        """The shape of the weight with the input channels last."""
        c_out, c_in, *kernel = self.weight_shape
        return (c_out, *kernel, c_in)

    def _in_fast_layout(self, draw: Draw) -> tuple[Weights, Weights]:
        """Means and standard deviations, in the memory layout in which the layer runs fastest."""
        return self.shared("means and sds", self._laid_out, draw)

    def _laid_out(self) -> tuple[Weights, Weights]:
        if torch.is_grad_enabled() or len(self.weight_shape) < 4:
            return self.mean_weights(), self.sds()
        layout = torch.channels_last if len(self.weight_shape) == 4 else torch.channels_last_3d
        mean, sds = self.mean_weights(), self.sds()
        weights = (part.weight.contiguous(memory_format=layout) for part in (mean, sds))
        mean_weight, sd_weight = weights
        return Weights(mean_weight, mean.bias), Weights(sd_weight, sds.bias)

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        if not self._by_rows(input, draw):
            return self.dense_output(input, draw)
        draw.call.by_rows.add(id(self))
        rows = self.rows_in(draw, input)
        batched = rows is None or rows.batched
        output = self.local_output(input if batched else input.unsqueeze(1), draw)
        return output if batched else output.squeeze(1)

    def _by_rows(self, input: Tensor, draw: Draw) -> bool:
        """Whether to draw the outputs of every row instead of the weights, where `sampling` lets us choose."""
        options, call = self.options, draw.call
        if self.repeats or call.at_mean or options.sampling == "weight" or draw.frozen(self):
            return False
        if not call.restarts:  # the network itself, or an objective
            return options.local_reparameterization
        if options.sampling == "local":
            return True
        rows = self.rows_in(draw, input)
        if rows is None or not rows.batched or rows.number != 1 or not rows.whole:
            return False
        inputs = input.shape[1]
        if draw.inputs not in (None, inputs) or call.couples_inputs():
            return False
        return by_row(Size(call.draws, inputs, 1, self.d_out, self.d_in, 0, 0))

    def local_output(self, input: Tensor, draw: Draw) -> Tensor:
        """Outputs (K, N, ...) drawn from their marginals N(x m, x^2 s^2), independently for every row of the input."""
        mean, sds = self._in_fast_layout(draw)
        out = self._run_all(input, mean)
        with without_autocast(input):  # squares of small sds vanish in half precision
            x, squares = at_least_float32(input), self.shared("variances", lambda: _squares(sds), draw)
            variance = self._run_all(x.square(), squares)
            size = None
            if not fits(variance):  # x^2 must not overflow where x does not
                size = over(largest(x), x.ndim)
                scaled = Weights(squares.weight, None)
                variance = self._run_all((x / size).square(), scaled)
                size = over(largest(x), variance.ndim)
                if squares.bias is not None:
                    bias = (
                        squares.bias.reshape(-1, *[1] * (variance.ndim - 3)) if self._channels_first() else squares.bias
                    )
                    variance = variance + bias / size.square()
            sd = safe_sqrt(variance)
            sd = sd if size is None else sd * size
            noise = draw.normals(self, "rows", *out.shape[1:], like=variance, by_input=True)
        if sd.dtype == out.dtype:
            return torch.addcmul(out, sd, noise)
        return out + (sd * noise).to(out.dtype)

    def _channels_first(self) -> bool:
        return len(self.weight_shape) > 2

    def _run_all(self, input: Tensor, weights: Weights) -> Tensor:
        """The plain layer on inputs (K or 1, N, ...), the same weights for all."""
        output = self.run(input.flatten(0, 1), *weights)
        return output.unflatten(0, input.shape[:2])

    def prior_sds(self) -> tuple[float, float]:
        """The prior standard deviations of weight and bias."""
        options, d_in = self.options, self.d_in
        weight_sd = neal(options.prior_weight_sd, d_in - self.has_bias) * options.nonlinearity_scale
        width = math.sqrt(d_in) if options.sqrt_width_scaling else 1.0
        return weight_sd / width, options.prior_bias_sd / width

    def kl_parts(self) -> KL:
        weight_sd, bias_sd = self.prior_sds()
        mean, sds = self.shared("means and sds", self._laid_out)
        weight, sd, mask = at_least_float32(mean.weight), sds.weight, mask_of(self, "_weight_sd")
        if mask is not None:  # what was pruned is no variable any more: as the prior has it, which adds nothing
            weight, sd = torch.where(mask, weight, self.options.prior_mean), torch.where(mask, sd, weight_sd)
        kl = kl_diagonal(weight, sd, self.options.prior_mean, weight_sd)
        if sds.bias is not None:
            kl = kl + kl_diagonal(at_least_float32(self.bias_mean), sds.bias, self.options.prior_mean, bias_sd)
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        cap = "" if self.options.max_sd is None else f", max_sd={self.options.max_sd:g}"
        return f"family=ffg, prior_sd={self.prior_sds()[0]:.3g}{cap}"


def _plus(mean: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """mean + sd noise for each of the K draws, in the type of the mean."""
    return torch.addcmul(mean, sd, noise) if mean.dtype == sd.dtype else mean + (sd * noise).to(mean.dtype)


def _squares(sds: Weights) -> Weights:
    return Weights(sds.weight.square(), None if sds.bias is None else sds.bias.square())
