"""What Gaussians over a layer's weights share: options, prior sds, and when outputs are drawn instead of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bnn._common.checks import check_bool, check_choice, check_positive
from bnn._engine.draw import Draw
from bnn.functional.cost import Size, by_row
from bnn.nn.base import BayesianLayer, Weights
from bnn.nn.options import Options, WeightSd, check_weight_sd, neal


@dataclass(frozen=True)
class GaussianOptions(Options):
    """Prior, start and draws of a Gaussian over the weights."""

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
        check_weight_sd("prior_weight_sd", self.prior_weight_sd)
        check_positive("prior_bias_sd", self.prior_bias_sd)
        check_positive("init_sd", self.init_sd)
        check_positive("max_sd", self.max_sd, none=True)
        check_bool("local_reparameterization", self.local_reparameterization)
        check_positive("nonlinearity_scale", self.nonlinearity_scale)
        check_bool("sqrt_width_scaling", self.sqrt_width_scaling)
        check_choice("sampling", self.sampling, ["auto", "weight", "local"])

    def start_sd(self) -> float:
        """The sd of every weight at the start."""
        return min(self.init_sd, self.max_sd or math.inf)


class GaussianWeights(BayesianLayer):
    """A Gaussian q(W): the outputs of one row x are Gaussian, too, so they may be drawn in place of W."""

    whole_rows = False  # whether `local_output` takes layers only whose outputs see whole rows

    options: GaussianOptions

    def local_output(self, input: Tensor, draw: Draw) -> Tensor:
        """Outputs (K, N, ...) of inputs (K or 1, N, ...), every row's from its own distribution, independently."""
        raise NotImplementedError

    def extra_multiplies(self) -> tuple[int, int]:
        """Beyond the plain layer's multiplies: those of a row whose outputs are drawn, those of one drawn W."""
        raise NotImplementedError

    def prior_sds(self) -> tuple[float, float]:
        """The prior standard deviations of weight and bias."""
        options, d_in = self.options, self.d_in
        weight_sd = neal(options.prior_weight_sd, d_in - self.has_bias) * options.nonlinearity_scale
        width = math.sqrt(d_in) if options.sqrt_width_scaling else 1.0
        return weight_sd / width, options.prior_bias_sd / width

    def about_sds(self) -> str:
        """The prior sd of the weights, and the cap on theirs, for `summary`."""
        cap = "" if self.options.max_sd is None else f", max_sd={self.options.max_sd:g}"
        return f"prior_sd={self.prior_sds()[0]:.3g}{cap}"

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
        if not call.restarts and not options.local_reparameterization:  # the network itself, or an objective
            return False
        rows = self.rows_in(draw, input)
        if self.whole_rows and (rows is None or not rows.whole):
            return False
        if not call.restarts or options.sampling == "local":
            return True
        if rows is None or not rows.batched or rows.number != 1 or not rows.whole:
            return False
        inputs = input.shape[1]
        if draw.inputs not in (None, inputs) or call.couples_inputs():
            return False
        return by_row(Size(call.draws, inputs, 1, self.d_out, self.d_in, 0, 0), *self.extra_multiplies())

    def run_all(self, input: Tensor, weights: Weights) -> Tensor:
        """The plain layer on inputs (K or 1, N, ...), the same weights for all."""
        output = self.run(input.flatten(0, 1), *weights)
        return output.unflatten(0, input.shape[:2])
