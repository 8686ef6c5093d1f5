"""Singular BNN: W = A B^T of rank r, with a mean and a standard deviation for every entry of both factors.

    A_ik ~ N(a_ik, s_ik^2),  B_jk ~ N(b_jk, t_jk^2),  A (d_out, r), B (d_in, r), all entries independent
    E[W_ij]   = sum_k a_ik b_jk
    Var[W_ij] = sum_k a_ik^2 t_jk^2 + s_ik^2 b_jk^2 + s_ik^2 t_jk^2
    prior     A_ik, B_jk ~ N(0, sd^2) with r sd^4 = prior_sd^2, which is then the prior variance of W_ij

Every draw of W has rank r: the posterior lives on a set of measure zero, and W is neither Gaussian nor independent. A
draw is never built where its factors act faster: y = A (B^T x).

Storage: 2 r (d_in + d_out) per layer. Time of K draws of N rows: K N r (d_in + d_out) multiplies and K r (d_in + d_out)
normals; with W built, K (N + r) d_in d_out. Inducing weights, whose outer factors are points, take r (d_in + d_out) and
some r^2: half of that at the same rank, or nearly twice the rank in the same memory.

When to choose it: as the rival that also stores less than the network. Compare at equal parameters, with `budget=`.

Reference: Mame Diarra Toure and David A. Stephens, Singular Bayesian Neural Networks, ICML 2026.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnn._common.checks import check_bool, check_budget, check_choice, check_positive, check_size
from bnn._engine.draw import Draw
from bnn.functional.cost import Size, by_factors
from bnn.functional.draws import mean_rows
from bnn.functional.gaussian import kl_diagonal, standard_normal
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive, without_autocast
from bnn.functional.product import factor_sd, factors_of
from bnn.nn.base import KL, Rows, Start, Weights
from bnn.nn.limited_rank import FROM_WEIGHTS, LimitedRank, prior_sd
from bnn.nn.options import Options

FACTOR_BYTES = 2**23  # that the factors of all draws of a call may take, per layer, to be kept


@dataclass(frozen=True)
class SingularOptions(Options):
    """Options of `singular`."""

    rank: int | None = None  # r; None: as the budget allows
    prior_sd: Any = 1.0  # of the weights; a number, or "weights": the root mean square of the weights at hand
    init_sd: float = 1e-4  # of the factors' entries; nearly deterministic: training first finds the mean
    max_sd: float | None = None  # of the factors' entries
    sqrt_width_scaling: bool = False  # divides prior_sd by sqrt(d_in), the bias counted
    kernel: str = "paper"  # a convolution's weights as c_out x (c_in kh kw); "split": (c_out kw) x (c_in kh); "auto"
    init: str = "weights"  # keep the weights at hand, truncated; "paper": random factors, drawn from the prior
    budget: float | None = None  # of all layers together: a fraction of their parameters, or an integer number of them

    def __post_init__(self) -> None:
        check_size("rank", self.rank, none=True)
        if self.prior_sd != FROM_WEIGHTS:
            check_positive("prior_sd", self.prior_sd, other=repr(FROM_WEIGHTS))
        check_positive("init_sd", self.init_sd)
        check_positive("max_sd", self.max_sd, none=True)
        check_bool("sqrt_width_scaling", self.sqrt_width_scaling)
        check_choice("kernel", self.kernel, ["paper", "split", "auto"])
        check_choice("init", self.init, ["weights", "paper"])
        check_budget("budget", self.budget)


class Factors(NamedTuple):
    """W = A B^T: of one matrix, or of K draws (K, ...)."""

    A: Tensor  # (rows of W, r)
    B: Tensor  # (columns of W, r)


class Singular(LimitedRank):
    """q(A) q(B) = prod N(a_ik, s_ik^2) prod N(b_jk, t_jk^2) for W = A B^T; a bias is the last column of W."""

    family = "singular"
    options_type = SingularOptions
    size_names = ("rank",)
    smallest = "a rank of 1"
    scales = ("_a_sd", "_b_sd")

    options: SingularOptions
    a_mean: Tensor  # (rows of W, r)
    _a_sd: Tensor  # the same, through softplus
    b_mean: Tensor  # (columns of W, r)
    _b_sd: Tensor

    @classmethod
    def cost(cls, shape: Sequence[int], options: SingularOptions, *sizes: int) -> int:
        return 2 * sizes[0] * sum(shape)

    @classmethod
    def start(cls, weights: Weights, options: SingularOptions, matrix: Tensor | None = None) -> Start:
        W = cls.arranged(weights, options) if matrix is None else matrix.to(weights.weight)  # another one to keep
        (r,) = cls.settled_sizes(options)
        if options.init == "paper":
            sd = factor_sd(prior_sd(options, cls.to_matrix(weights).shape[1]), r)
            A, B = (sd * standard_normal(side, r, like=W) for side in W.shape)
        else:
            A, B = factors_of(W, r)
        raw = inverse_softplus(torch.tensor(min(options.init_sd, options.max_sd or math.inf), dtype=torch.double))
        trained = {"a_mean": A, "_a_sd": torch.full_like(A, raw.item())}
        return Start(trained | {"b_mean": B, "_b_sd": torch.full_like(B, raw.item())}, {}, {})

    def sds(self) -> Factors:
        """The standard deviations of both factors."""
        return Factors(*(positive(raw, self.options.max_sd) for raw in (self._a_sd, self._b_sd)))

    def sds_and_cap(self) -> tuple[Tensor, float | None]:
        return torch.cat([part.flatten() for part in self.sds()]), self.options.max_sd

    # ---- draws -------------------------------------------------------------------------------------------------------

    def factors(self, draw: Draw) -> Factors:
        """A (K, rows of W, r) and B (K, columns of W, r) of every draw; their means in a draw at the mean."""
        small = 4 * draw.call.draws * (self.a_mean.numel() + self.b_mean.numel()) <= FACTOR_BYTES
        if small or draw.seeds is None:
            return draw.once(self, "factors", self._factors)
        return self._factors(draw)

    def _factors(self, draw: Draw) -> Factors:
        if draw.call.at_mean:
            return Factors(*(mean.expand(draw.count, -1, -1) for mean in (self.a_mean, self.b_mean)))
        sds = self.shared("sds", self.sds, draw)
        return Factors(
            _plus(self.a_mean, sds.A, draw.normals(self, "a", *sds.A.shape, like=sds.A)),
            _plus(self.b_mean, sds.B, draw.normals(self, "b", *sds.B.shape, like=sds.B)),
        )

    def mean_weights(self) -> Weights:
        return self._weights(Factors(self.a_mean, self.b_mean))

    def sample_weights(self, draw: Draw) -> Weights:
        return self._weights(self.factors(draw))

    def _weights(self, factors: Factors) -> Weights:
        A, B = (at_least_float32(part) for part in factors)
        with without_autocast(A):
            W = (A @ B.mT).to(self.a_mean.dtype)
        return self.from_split(W) if self.split else self.from_matrix(W)

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        """The outputs (K, ...): through the factors, or with W built, whichever takes less; both are the same."""
        rows = self.rows_in(draw, input)
        if rows is None or not rows.whole or not self._pays(rows, input):
            return self.dense_output(input, draw)
        x = input if rows.batched else input[:, None]  # (K or 1, N, ...)
        if draw.folded and x.ndim > 3:
            x = self.fast_layout(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        A, B = self.factors(draw)
        T = self._project(x, B)
        y = self.from_neighbours(T, A.to(T.dtype)) if self.split else mean_rows(T, A.to(T.dtype))
        output = self.from_rows(y, rows, x)
        return output if rows.batched else output[:, 0]

    def _pays(self, rows: Rows, input: Tensor) -> bool:
        """Whether the factors take less time than W."""
        inputs, (r,) = input.shape[1] if rows.batched else 1, self.sizes()
        size = Size(1, inputs, rows.number, self.d_out, self.d_in, r, r)
        return by_factors(size._replace(last_taps=rows.last_taps, projected=rows.projected) if self.split else size)

    def _project(self, x: Tensor, B: Tensor) -> Tensor:
        """T = X B of every draw, (K, N p, r); of a split kernel at all positions of t, (K, N, *space, r)."""
        if not self.split:
            return self.to_rows(self.run_each(x, self.from_matrix(B.mT)))
        weight, bias = self.split_projection(B.mT)  # (K, r, ...)
        if len(x) == 1:  # all draws see the same: one convolution to K r channels
            together = self.project_split(x, Weights(weight.flatten(0, 1), None if bias is None else bias.flatten()))
            return together.squeeze(0).unflatten(-1, (len(B), -1)).movedim(-2, 0)
        biases = [None] * len(B) if bias is None else list(bias)
        each = zip(x.split(1), weight, biases, strict=True)
        return torch.cat([self.project_split(one, Weights(*own)) for one, *own in each])

    # ---- the objective -----------------------------------------------------------------------------------------------

    def kl_parts(self) -> KL:
        sds, sd = self.shared("sds", self.sds), factor_sd(self.prior_sd(), self.sizes()[0])
        kl = kl_diagonal(at_least_float32(self.a_mean), sds.A, 0.0, sd)
        kl = kl + kl_diagonal(at_least_float32(self.b_mean), sds.B, 0.0, sd)
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        cap = "" if self.options.max_sd is None else f", max_sd={self.options.max_sd:g}"
        kernel = ", kernel=split" if self.split else ""
        return f"family=singular, rank={self.sizes()[0]}, prior_sd={self.prior_sd():.3g}{cap}{kernel}"


def _plus(mean: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """mean + sd noise for each of the K draws, in the type of the mean."""
    return torch.addcmul(mean, sd, noise) if mean.dtype == sd.dtype else mean + (sd * noise).to(mean.dtype)
