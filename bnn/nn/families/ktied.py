"""k-tied FFG-W: every weight has a mean of its own, the standard deviations are a positive matrix of rank k.

Storage d_in d_out + k (d_in + d_out), time O(N K d_in d_out). Swiatkowski, Roth, Veeling, Tran, Dillon, Snoek, Mandt,
Salimans, Jenatton and Nowozin 2020, *The k-tied normal distribution*: trained mean-field sds have low rank, and sds
that are tied train faster. Choose it for mean-field uncertainty at hardly more parameters than the network's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_number, check_size
from bnn.functional.linalg import inverse_softplus, positive, without_autocast
from bnn.nn.base import Start, Weights
from bnn.nn.families.gaussian_weights import GaussianOptions
from bnn.nn.families.mean_field import MeanField


@dataclass(frozen=True)
class KTiedOptions(GaussianOptions):
    """Options of `ktied`."""

    prior_mean: float = 0.0
    rank: int = 2  # k; the reference finds 2 or 3 enough

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("prior_mean", self.prior_mean)
        check_size("rank", self.rank)

    def factor_cap(self) -> float:
        """The cap on the entries of A and B."""
        return math.inf if self.max_sd is None else math.sqrt(self.max_sd / self.rank)


class KTied(MeanField):
    """q(W) = prod N(mean_ij, sd_ij^2) with sd = A B (d_out, d_in), A (d_out, k) and B (k, d_in) positive.

    The bias is the last column of W. At k = min(d_out, d_in) it can be any matrix: sd = sd I, or I sd. A cap on the sds
    is one of sqrt(max_sd / k) on the entries of A and B.
    """

    family = "ktied"
    options_type = KTiedOptions
    scales = ("_row_sd", "_col_sd")

    options: KTiedOptions
    mean: Tensor  # (d_out, d_in)
    _row_sd: Tensor  # (d_out, k), through softplus
    _col_sd: Tensor  # (k, d_in), through softplus

    @classmethod
    def start(cls, weights: Weights, options: KTiedOptions) -> Start:
        W = cls.to_matrix(weights).clone()
        d_out, d_in = W.shape
        row, col = start_factors(d_out, d_in, options.rank, options.start_sd(), options.factor_cap())
        raw = {"_row_sd": inverse_softplus(row).to(W), "_col_sd": inverse_softplus(col).to(W)}
        return Start(trained={"mean": W, **raw}, fixed={}, objects={})

    def sds(self) -> Weights:
        cap = self.options.factor_cap()
        with without_autocast(self._row_sd):
            return self.from_matrix(positive(self._row_sd, cap) @ positive(self._col_sd, cap))

    def prior_means(self) -> tuple[float, float]:
        return self.options.prior_mean, self.options.prior_mean

    def mean_weights(self) -> Weights:
        return self.from_matrix(self.mean)

    def summary(self) -> str:
        return f"family=ktied, rank={self.options.rank}, {self.about_sds()}"


def start_factors(d_out: int, d_in: int, rank: int, sd: float, cap: float) -> tuple[Tensor, Tensor]:
    """Positive A (d_out, k) and B (k, d_in) with A B = sd everywhere, less where an entry would be above `cap`.

    Row i of A leans towards component i mod k: components that start alike would have the same gradients, and so stay
    alike, of rank 1. In float64 on the CPU.
    """
    lean = 1.0 + (torch.arange(d_out, device="cpu")[:, None] % rank == torch.arange(rank, device="cpu")).double()
    row = math.sqrt(sd * rank) * lean / lean.sum(1, keepdim=True)
    col = torch.full((rank, d_in), math.sqrt(sd / rank), dtype=torch.double, device="cpu")
    return row.clamp(max=cap), col.clamp(max=cap)
