"""Rank-1 BNN: one matrix W, and Gaussian factors on its inputs and outputs; a mixture of several."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_number, check_positive, check_size
from bnn._engine.draw import Draw
from bnn.functional.gaussian import kl_diagonal
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.nn.base import KL, Start, Weights
from bnn.nn.families.scaled import ScaledWeights, Scales, around_one, kept
from bnn.nn.options import Options


@dataclass(frozen=True)
class Rank1Options(Options):
    """Options of `rank1`."""

    components: int = 4  # of the mixture, as in the paper
    prior_mean: float = 1.0  # of the factors: 1 leaves W as it is
    prior_sd: float = 0.1  # of the factors, as in the paper
    init_sd: float = 0.01  # a tenth of the prior's: training first finds the means
    max_sd: float | None = None
    member_sd: float = 0.1  # of the components' means at the start, around 1: as far apart as the prior

    def __post_init__(self) -> None:
        check_size("components", self.components)
        check_number("prior_mean", self.prior_mean)
        check_positive("prior_sd", self.prior_sd)
        check_positive("init_sd", self.init_sd)
        check_positive("max_sd", self.max_sd, none=True)
        check_positive("member_sd", self.member_sd, zero=True)


class Rank1(ScaledWeights):
    """W' = W * (s r^T), r ~ N(r_c, diag sd^2), s ~ N(s_c, diag sd^2) with one of C components c per draw.

    W and the bias are points without a KL. The prior of every factor is N(1, prior_sd^2). The KL is the mean over the
    components of each one's own, which by convexity is at least the mixture's:

        KL[1/C sum_c q_c || p] <= 1/C sum_c KL[q_c || p]

    One component per draw over the whole network, all used evenly by `bnn.predict`; `samples=components` trains each of
    them on every batch.

    Storage: d_in d_out + 2 C (c_in + d_out), c_in being the input channels of the kernel, the inputs of a linear layer;
    the paper counts one component. Time: O(N K d_in d_out), K draws of N inputs as one batch of K N, without K weights.
    Choose it for members that disagree, for hardly more parameters than one network.

    Reference: Dusenberry et al., Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors, ICML 2020.
    """

    family = "rank1"
    options_type = Rank1Options
    scales = ("_r_sd", "_s_sd")

    options: Rank1Options
    r_mean: Tensor  # (C, c_in)
    s_mean: Tensor  # (C, d_out)
    _r_sd: Tensor  # (C, c_in), through softplus
    _s_sd: Tensor  # (C, d_out), through softplus

    @classmethod
    def start(cls, weights: Weights, options: Rank1Options) -> Start:
        sd = min(options.init_sd, options.max_sd or math.inf)
        raw = inverse_softplus(torch.tensor(sd, dtype=torch.double)).item()
        r, s = means = around_one(options.components, options.member_sd, weights)
        tensors = {"r_mean": r, "_r_sd": torch.full_like(r, raw), "s_mean": s, "_s_sd": torch.full_like(s, raw)}
        return Start(trained=kept(weights, means) | tensors, fixed={}, objects={})

    @classmethod
    def member_number(cls, options: Rank1Options) -> int:
        return options.components

    def members(self) -> Scales:
        return Scales(self.r_mean, self.s_mean)

    def sds(self) -> Scales:
        """The standard deviations of r (C, c_in) and s (C, d_out)."""
        return Scales(positive(self._r_sd, self.options.max_sd), positive(self._s_sd, self.options.max_sd))

    def sds_and_cap(self) -> tuple[Tensor, float | None]:
        return torch.cat([part.flatten() for part in self.sds()]), self.options.max_sd

    def sample_scales(self, draw: Draw) -> Scales:
        shown = draw.member(self, self.options.components).to(self.r_mean.device)
        drawn = []
        for name, mean, sd in zip(("r", "s"), self.members(), self.sds(), strict=True):
            noise = draw.normals(self, name, mean.shape[1], like=sd)
            factors = at_least_float32(mean).index_select(0, shown) + sd.index_select(0, shown) * noise
            drawn.append(factors.to(mean.dtype))
        return Scales(*drawn)

    def kl_parts(self) -> KL:
        options = self.options
        sums = [
            kl_diagonal(at_least_float32(mean), sd, options.prior_mean, options.prior_sd)
            for mean, sd in zip(self.members(), self.sds(), strict=True)
        ]
        kl = (sums[0] + sums[1]) / options.components
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        options = self.options
        cap = "" if options.max_sd is None else f", max_sd={options.max_sd:g}"
        return f"family=rank1, components={options.components}, prior_sd={options.prior_sd:.3g}{cap}"
