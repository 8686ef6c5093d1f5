"""FCG-W: one Gaussian with full covariance over all weights of a layer. For small layers, such as the last one.

Storage 2 n + n^2 for n = d_in d_out weights, time O(N K d_in d_out + K n^2). Choose it where every correlation within a
small layer counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_number, check_positive
from bnn._engine.draw import Draw
from bnn.functional.gaussian import kl_full
from bnn.functional.linalg import (
    at_least_float32,
    inverse_softplus,
    positive,
    row_norms,
    triangle_unit,
    without_autocast,
)
from bnn.nn.base import KL, BayesianLayer, Start, Weights
from bnn.nn.memory import refuse_covariance
from bnn.nn.options import Options, WeightSd, check_weight_sd, neal


@dataclass(frozen=True)
class FCGOptions(Options):
    """Options of `fcg`."""

    prior_mean: float = 0.0
    prior_weight_sd: WeightSd = 1.0  # "neal": 1 / sqrt(fan-in without the bias)
    prior_bias_sd: float = 1.0
    init_sd: float = 1e-4  # nearly deterministic: training first finds the mean
    nonlinearity_scale: float = 1.0  # multiplies the prior sd of the weights

    def __post_init__(self) -> None:
        check_number("prior_mean", self.prior_mean)
        check_weight_sd("prior_weight_sd", self.prior_weight_sd)
        check_positive("prior_bias_sd", self.prior_bias_sd)
        check_positive("init_sd", self.init_sd)
        check_positive("nonlinearity_scale", self.nonlinearity_scale)


class FCG(BayesianLayer):
    """q(w) = N(mean, T T^T) over the vector w (n,): the weight row-major, then the bias.

    The strict lower part of T is trained in units of `triangle_unit(n)`; the state dict holds it in units of 1.
    """

    family = "fcg"
    options_type = FCGOptions
    scales = ("_scale_diag",)

    options: FCGOptions
    mean: Tensor  # (n,)
    _scale_diag: Tensor  # (n,), through softplus
    _scale_tril: Tensor  # (n, n), only the strict lower part is read, in units of `triangle_unit`

    @classmethod
    def start(cls, weights: Weights, options: FCGOptions) -> Start:
        refuse_covariance(cls.covariance_size(weights, options), weights.weight, cls.family)
        mean = _to_vector(weights)
        raw = inverse_softplus(torch.tensor(options.init_sd, dtype=torch.double)).item()
        tril = torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device)
        return Start(
            trained={"mean": mean, "_scale_diag": torch.full_like(mean, raw), "_scale_tril": tril}, fixed={}, objects={}
        )

    @classmethod
    def covariance_size(cls, weights: Weights, options: FCGOptions) -> int:
        return sum(part.numel() for part in weights if part is not None)

    def units(self) -> dict[str, Tensor | float]:
        return {"_scale_tril": triangle_unit(len(self.mean))}

    @property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor T (n, n) of the covariance."""
        below = at_least_float32(self._scale_tril).tril(-1) * triangle_unit(len(self.mean))
        return below + torch.diag(positive(self._scale_diag))

    def sds_and_cap(self) -> tuple[Tensor, None]:
        return row_norms(self.scale_tril), None

    def mean_weights(self) -> Weights:
        return self._from_vector(self.mean)

    def sample_weights(self, draw: Draw) -> Weights:
        tril = self.scale_tril
        noise = draw.normals(self, "w", len(tril), like=tril)
        with without_autocast(tril):
            return self._from_vector(self.mean + (noise @ tril.mT).to(self.mean.dtype))

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        return self.dense_output(input, draw)

    def prior_sds(self) -> Tensor:
        """The prior standard deviations (n,)."""
        options, bias = self.options, len(self.mean) - self.weight_shape.numel()
        weight_sd = neal(options.prior_weight_sd, self.d_in - self.has_bias) * options.nonlinearity_scale
        sds = self.mean.new_full(self.mean.shape, weight_sd, dtype=at_least_float32(self.mean).dtype)
        sds[len(sds) - bias :] = options.prior_bias_sd
        return sds

    def kl_parts(self) -> KL:
        mean = at_least_float32(self.mean)
        prior_mean = torch.full_like(mean, self.options.prior_mean)
        kl = kl_full(mean, self.scale_tril, prior_mean, self.prior_sds())
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        sd = neal(self.options.prior_weight_sd, self.d_in - self.has_bias) * self.options.nonlinearity_scale
        return f"family=fcg, n={len(self.mean)}, prior_sd={sd:.3g}"

    def _from_vector(self, vector: Tensor) -> Weights:
        n = self.weight_shape.numel()
        return Weights(vector[..., :n].unflatten(-1, self.weight_shape), vector[..., n:] if self.has_bias else None)


def _to_vector(weights: Weights) -> Tensor:
    parts = [weights.weight.flatten()] + ([] if weights.bias is None else [weights.bias])
    return torch.cat(parts)
