"""What follows from the parameters of an inducing layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnn.functional.inducing import Factors
from bnn.nn.base import Weights


class Posterior:
    """What follows from the parameters of an inducing layer, computed once per call."""

    def __init__(self, row: Factors, col: Factors, lamda: Tensor | None, spread: Any) -> None:
        self.row, self.col = row, col
        self.lamda = lamda  # None where W is a point given u
        self.spread = spread  # of q(U): what its samples and its KL need beside the mean
        self.projection: Weights | None = None  # A_c as weights of the layer, when somebody needs them
        self.built: Weights | None = None  # W, of a point that keeps it
        self.pair: tuple[Weights, Weights] | None = None  # A_c and C of a point, as weights of two plain layers
        self._joined: Tensor | None = None
        self._back: Tensor | None = None
        self._taken: Tensor | None = None
        self._lamda: float | None = None

    def joined(self) -> Tensor:
        """[A_r R_r] (M_out, d_out + M_out)."""
        if self._joined is None or torch.is_grad_enabled():
            self._joined = torch.cat([self.row.A, self.row.R], dim=1)
        return self._joined

    def back(self) -> Tensor:
        """A_r^T (rows of W, M_out), in its own order in memory."""
        if self._back is None or torch.is_grad_enabled():
            self._back = self.row.A.mT.contiguous()
        return self._back

    def taken(self) -> Tensor:
        """G_r A_r (M_out, rows of W)."""
        if self._taken is None or torch.is_grad_enabled():
            self._taken = self.row.G @ self.row.A
        return self._taken

    def scale(self, sigma: float) -> Tensor | float:
        """lamda sigma; a number where no gradient flows to lamda, which saves operations."""
        assert self.lamda is not None
        if self.lamda.requires_grad or torch.compiler.is_compiling():
            return self.lamda * sigma
        if self._lamda is None:
            try:
                self._lamda = self.lamda.item()
            except RuntimeError:  # inside torch.func's transforms there is no looking
                return self.lamda * sigma
        return self._lamda * sigma
