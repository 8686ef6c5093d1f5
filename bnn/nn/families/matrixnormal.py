"""Matrix-normal-W: the weights of a layer have one covariance of outputs and one of inputs.

Storage d_in d_out + d_in + d_out, time O(N K d_in d_out) with `covariance="diagonal"`; "full" stores two triangles,
d_in d_out + d_in (d_in + 1) / 2 + d_out (d_out + 1) / 2, and every W drawn takes d_in d_out (d_in + d_out) multiplies
more. Louizos and Welling 2016, *Structured and efficient variational deep learning with matrix Gaussian posteriors*.
Choose "diagonal" where memory is short, "full" for correlations between the weights of layers with some hundred inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnn._common.checks import check_choice, check_number
from bnn._engine.draw import Draw
from bnn.functional import matrix_normal
from bnn.functional.linalg import (
    at_least_float32,
    fits,
    inverse_softplus,
    largest,
    over,
    positive,
    safe_sqrt,
    squared_norm,
    triangle_unit,
    unpack_tril,
    without_autocast,
)
from bnn.nn.base import KL, Start, Weights
from bnn.nn.families.gaussian_weights import GaussianOptions, GaussianWeights
from bnn.nn.memory import refuse_covariance

COVARIANCES = ["diagonal", "full"]


@dataclass(frozen=True)
class MatrixNormalOptions(GaussianOptions):
    """Options of `matrixnormal`."""

    prior_mean: float = 0.0
    covariance: str = "diagonal"  # of rows and columns; "full": two triangles

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("prior_mean", self.prior_mean)
        check_choice("covariance", self.covariance, COVARIANCES)
        if self.covariance == "full" and self.max_sd is not None:
            raise ValueError(f"max_sd caps a 'diagonal' covariance only; got max_sd={self.max_sd!r} beside 'full'")


class MatrixNormal(GaussianWeights):
    """q(W) = MN(mean, T_r T_r^T, T_c T_c^T) for W (d_out, d_in), the bias its last column: W = mean + T_r E T_c^T.

    The outputs of one row x are N(mean x, |T_c^T x|^2 T_r T_r^T), so they can be drawn without W. A triangle is packed
    as its softplus-diagonal, then its strict lower part row by row, which trains in units of `triangle_unit`; the
    state dict holds it in units of 1.
    """

    family = "matrixnormal"
    options_type = MatrixNormalOptions
    scales = ("_row_sd", "_col_sd")
    whole_rows = True

    options: MatrixNormalOptions
    mean: Tensor  # (d_out, d_in)
    _row_sd: Tensor  # "diagonal": (d_out,), through softplus
    _col_sd: Tensor  # (d_in,)
    _row_scale_tril: Tensor  # "full": (d_out (d_out + 1) / 2,)
    _col_scale_tril: Tensor  # (d_in (d_in + 1) / 2,)

    @classmethod
    def start(cls, weights: Weights, options: MatrixNormalOptions) -> Start:
        refuse_covariance(cls.covariance_size(weights, options), weights.weight, cls.family)
        W = cls.to_matrix(weights).clone()
        raw = inverse_softplus(torch.tensor(options.start_sd(), dtype=torch.double).sqrt()).item()  # of both sides
        tensors = {"mean": W}
        for name, n in zip(_names(options.covariance), W.shape, strict=True):
            entries = n if options.covariance == "diagonal" else n * (n + 1) // 2
            tensors[name] = W.new_zeros(entries)
            tensors[name][:n] = raw
        return Start(trained=tensors, fixed={}, objects={})

    @classmethod
    def covariance_size(cls, weights: Weights, options: MatrixNormalOptions) -> int:
        d_out, d_in = cls.to_matrix(weights).shape
        return 0 if options.covariance == "diagonal" else max(d_out, d_in)

    def units(self) -> dict[str, Tensor | float]:
        if self.options.covariance == "diagonal":
            return {}
        return {name: self._unit(name, n) for name, n in self._sides()}

    def _unit(self, name: str, n: int) -> Tensor:
        units = torch.full_like(getattr(self, name), triangle_unit(n))
        units[:n] = 1.0  # the diagonal, through softplus
        return units

    def _sides(self) -> list[tuple[str, int]]:
        """The names of the scales of both sides, with their sizes."""
        return list(zip(_names(self.options.covariance), (self.d_out, self.d_in), strict=True))

    def row_and_col(self) -> tuple[Tensor, Tensor]:
        """T_r (d_out, d_out) and T_c (d_in, d_in), or their diagonals where the covariances are diagonal."""
        if self.options.covariance == "diagonal":
            cap = None if self.options.max_sd is None else math.sqrt(self.options.max_sd)
            return positive(self._row_sd, cap), positive(self._col_sd, cap)
        row, col = (unpack_tril(getattr(self, name), n, triangle_unit(n)) for name, n in self._sides())
        return row, col

    def _row_and_fast_col(self) -> tuple[Tensor, Tensor]:
        """The same with the columns of W in the order in which the layer runs fastest."""
        row, col = self.row_and_col()
        return row, self.fast_order(col) if col.ndim == 1 else self.fast_order(col.mT).mT

    def sds_and_cap(self) -> tuple[Tensor, float | None]:
        row, col = (scale.double() for scale in self.row_and_col())
        return matrix_normal.standard_deviations(row, col), self.options.max_sd

    def mean_weights(self) -> Weights:
        return self.from_matrix(self.mean)

    def sample_weights(self, draw: Draw) -> Weights:
        row, col = self.shared("rows and fast columns", self._row_and_fast_col, draw)
        noise = draw.normals(self, "w", self.d_out, self.d_in, like=row)
        with without_autocast(row):
            weight, bias = self.from_fast_order(matrix_normal.spread(row, noise, col).to(self.mean.dtype))
        mean = self.mean_weights()
        return Weights(mean.weight + weight, None if mean.bias is None or bias is None else mean.bias + bias)

    def extra_multiplies(self) -> tuple[int, int]:
        d_out, d_in = self.d_out, self.d_in
        if self.options.covariance == "diagonal":
            return d_in, 0
        return d_in**2 + d_out**2, d_in * d_out * (d_in + d_out)

    def local_output(self, input: Tensor, draw: Draw) -> Tensor:
        rows = self.rows_in(draw, input)
        assert rows is not None
        out = self.run_all(input, self.mean_weights())
        with without_autocast(input):
            x = at_least_float32(input)
            row, col = self.shared("rows and columns", self.row_and_col, draw)
            sds = self.input_sds(x, col)
            noise = draw.normals(self, "rows", sds.shape[1], self.d_out, like=sds, by_input=True)
            spread = self.from_rows(sds[..., None] * matrix_normal.spread_rows(noise, row), rows, x)
        return out + spread.to(out.dtype)

    def input_sds(self, x: Tensor, col: Tensor) -> Tensor:
        """|T_c^T x| of every row, (K or 1, N p), the bias's 1 included, for inputs (K or 1, N, ...)."""
        if col.ndim == 1:
            weights = self.from_matrix(col.square()[None])
            squares = self.project(x.square(), weights).squeeze(-1)
        else:
            T = self.project(x, self.from_matrix(col.mT))  # (K or 1, N p, d_in)
            squares = squared_norm(T)
        if fits(squares):
            return safe_sqrt(squares)
        size = largest(x, least=float(self.has_bias))  # squares must not overflow where x does not
        of_rows = size.repeat_interleave(squares.shape[1] // max(1, size.shape[1]), dim=1)
        if col.ndim > 1:
            return of_rows * safe_sqrt(squared_norm(T / of_rows[..., None]))
        squares = self.project((x / over(size, x.ndim)).square(), Weights(weights.weight, None)).squeeze(-1)
        squares = squares if weights.bias is None else squares + weights.bias / of_rows.square()
        return of_rows * safe_sqrt(squares)

    def prior_columns(self) -> Tensor:
        """The prior standard deviations of the columns of W, (d_in,)."""
        weight_sd, bias_sd = self.prior_sds()
        sds = self.mean.new_full((self.d_in,), weight_sd, dtype=at_least_float32(self.mean).dtype)
        sds[self.d_in - self.has_bias :] = bias_sd
        return sds

    def kl_parts(self) -> KL:
        """KL to N(prior_mean, I (x) diag(prior sds)^2): in units of the prior sds that is a standard normal."""
        row, col = self.shared("rows and columns", self.row_and_col)
        sds = self.prior_columns()
        mean = (at_least_float32(self.mean) - self.options.prior_mean) / sds
        kl = matrix_normal.kl_to_standard(mean, row, matrix_normal.over_columns(col, sds))
        return KL(u=kl, lamda=torch.zeros_like(kl))

    def summary(self) -> str:
        return f"family=matrixnormal, covariance={self.options.covariance}, {self.about_sds()}"


def _names(covariance: str) -> tuple[str, str]:
    """The parameters that hold the scales of rows and columns."""
    return ("_row_sd", "_col_sd") if covariance == "diagonal" else ("_row_scale_tril", "_col_scale_tril")
