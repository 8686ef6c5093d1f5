"""BatchEnsemble: members that share one matrix W, each with factors of its own on inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_positive, check_size
from bnn._engine.draw import Draw
from bnn.functional.linalg import at_least_float32
from bnn.nn.base import KL, Start, Weights
from bnn.nn.families.scaled import ScaledWeights, Scales, around_one, kept
from bnn.nn.options import Options


@dataclass(frozen=True)
class BatchEnsembleOptions(Options):
    """Options of `batchensemble`."""

    ensemble_size: int = 4  # as in the paper
    member_sd: float = 0.1  # of the members' factors at the start, around 1: small, so that trained weights still work

    def __post_init__(self) -> None:
        check_size("ensemble_size", self.ensemble_size)
        check_positive("member_sd", self.member_sd, zero=True)


class BatchEnsemble(ScaledWeights):
    """W_k = W * (s_k r_k^T): an ensemble of C points. W and the bias are shared; there is no prior and no KL.

    One member per draw over the whole network, all used evenly by `bnn.predict`; `samples=ensemble_size` trains each of
    them on every batch.

    Storage: d_in d_out + C (c_in + d_out), c_in being the input channels of the kernel, the inputs of a linear layer.
    Time: O(N K d_in d_out), K draws of N inputs as one batch of K N, without K weights. Choose it for an ensemble that
    trains like a plain network, in hardly more memory.

    Reference: Wen, Tran and Ba, BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning,
    ICLR 2020. Its bias is one per member.
    """

    family = "batchensemble"
    options_type = BatchEnsembleOptions

    options: BatchEnsembleOptions
    r: Tensor  # (C, c_in)
    s: Tensor  # (C, d_out)

    @classmethod
    def start(cls, weights: Weights, options: BatchEnsembleOptions) -> Start:
        members = around_one(options.ensemble_size, options.member_sd, weights)
        return Start(trained=kept(weights, members) | members._asdict(), fixed={}, objects={})

    @classmethod
    def member_number(cls, options: BatchEnsembleOptions) -> int:
        return options.ensemble_size

    def members(self) -> Scales:
        return Scales(self.r, self.s)

    def sds_and_cap(self) -> tuple[Tensor, None]:
        return torch.cat([part.double().std(0, correction=0) for part in self.members()]), None

    def sample_scales(self, draw: Draw) -> Scales:
        shown = draw.member(self, self.options.ensemble_size).to(self.r.device)
        return Scales(*(part.index_select(0, shown) for part in self.members()))

    def kl_parts(self) -> KL:
        zero = self.r.new_zeros((), dtype=at_least_float32(self.r).dtype)
        return KL(u=zero, lamda=zero)

    def summary(self) -> str:
        return f"family=batchensemble, members={self.options.ensemble_size}"
