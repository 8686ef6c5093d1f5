"""The matrix normal distribution and the Kronecker product that ties it to the multivariate normal."""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints
from torch.types import _size

_real_matrix = constraints.independent(constraints.real, 2)


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Batched Kronecker product, (a (x) b)[i p + k, j q + l] = a[i, j] b[k, l].

    Args:
        a: (..., n, m)
        b: (..., p, q); batch dimensions broadcast against those of `a`

    Returns:
        (..., n p, m q)

    >>> kron(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [10.0]]))
    tensor([[ 1.,  2.],
            [10., 20.]])
    """
    product = a[..., :, None, :, None] * b[..., None, :, None, :]  # (..., n, p, m, q)
    return product.flatten(-4, -3).flatten(-2)


def solve_lower(scale_tril: Tensor, x: Tensor) -> Tensor:
    """Solve L Y = X for lower-triangular L (..., n, n) and X (..., n, m), batch dimensions broadcasting."""
    if scale_tril.dim() > 2 or x.dim() == 2:
        return torch.linalg.solve_triangular(scale_tril, x, upper=False)
    # One L for the whole batch: the batch becomes columns, or L would be copied once per element.
    rows_first = x.movedim(-2, 0)  # (n, ..., m)
    y = torch.linalg.solve_triangular(scale_tril, rows_first.flatten(1), upper=False)
    return y.reshape(rows_first.shape).movedim(0, -2)


class MatrixNormal(Distribution):
    """Matrix normal distribution MN(loc, L_r L_r^T, L_c L_c^T), with L_r and L_c lower triangular.

    X = loc + L_r E L_c^T with independent standard normal E, hence Cov[X_ij, X_kl] = (L_r L_r^T)_ik (L_c L_c^T)_jl and,
    row by row, X.reshape(n m) ~ N(loc.reshape(n m), S S^T) with S = L_r (x) L_c.

    Args:
        loc: mean, (..., n, m)
        row_scale_tril: L_r, (..., n, n), positive diagonal
        col_scale_tril: L_c, (..., m, m), positive diagonal
        validate_args: whether to check values, here and in `log_prob`; None is torch's default (shapes always are)

    Batch dimensions of the three broadcast.

    >>> d = MatrixNormal(torch.zeros(2, 3), 2 * torch.eye(2), torch.eye(3))
    >>> d.event_shape, d.rsample((5,)).shape
    (torch.Size([2, 3]), torch.Size([5, 2, 3]))
    >>> d.log_prob(torch.zeros(2, 3)).isclose(d.to_multivariatenormal().log_prob(torch.zeros(6)))
    tensor(True)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": _real_matrix,
        "row_scale_tril": constraints.lower_cholesky,
        "col_scale_tril": constraints.lower_cholesky,
    }
    support = _real_matrix
    has_rsample = True

    def __init__(
        self, loc: Tensor, row_scale_tril: Tensor, col_scale_tril: Tensor, validate_args: bool | None = None
    ) -> None:
        batch_shape = _checked_batch_shape(loc, row_scale_tril, col_scale_tril)
        # As given, not broadcast: whatever a batch shares is factored, solved and stored once.
        self._loc = loc
        self._row = row_scale_tril
        self._col = col_scale_tril
        super().__init__(batch_shape, loc.shape[-2:], validate_args=validate_args)

    def __repr__(self) -> str:
        shapes = (f"{name}: {getattr(self, name).shape}" for name in self.arg_constraints)
        return f"MatrixNormal({', '.join(shapes)})"

    def expand(self, batch_shape: _size, _instance: Any = None) -> MatrixNormal:
        """The same distribution with `batch_shape`, to which the present one must broadcast; nothing is copied."""
        batch_shape = torch.Size(batch_shape)
        self.loc.expand(batch_shape + self.event_shape)  # raises if it does not broadcast
        new = cast(MatrixNormal, self._get_checked_instance(MatrixNormal, _instance))  # type: ignore[no-untyped-call]
        new._loc, new._row, new._col = self._loc, self._row, self._col
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def loc(self) -> Tensor:
        """Mean, (..., n, m)."""
        return self._expanded(self._loc)

    @property
    def row_scale_tril(self) -> Tensor:
        """L_r, (..., n, n)."""
        return self._expanded(self._row)

    @property
    def col_scale_tril(self) -> Tensor:
        """L_c, (..., m, m)."""
        return self._expanded(self._col)

    @property
    def row_covariance_matrix(self) -> Tensor:
        """L_r L_r^T, (..., n, n)."""
        return self._expanded(self._row @ self._row.mT)

    @property
    def col_covariance_matrix(self) -> Tensor:
        """L_c L_c^T, (..., m, m)."""
        return self._expanded(self._col @ self._col.mT)

    @property
    def mean(self) -> Tensor:
        """E[X], (..., n, m)."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable X, which is the mean, (..., n, m)."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Var[X_ij] = (L_r L_r^T)_ii (L_c L_c^T)_jj, (..., n, m)."""
        row = self._row.square().sum(-1)  # (..., n)
        col = self._col.square().sum(-1)  # (..., m)
        return self._expanded(row.unsqueeze(-1) * col.unsqueeze(-2))

    def rsample(self, sample_shape: _size = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw loc + L_r E L_c^T, differentiable in all three parameters, (*sample_shape, ..., n, m)."""
        shape = self._extended_shape(sample_shape)
        noise = torch.randn(shape, generator=generator, dtype=self._loc.dtype, device=self._loc.device)
        return self.loc + self._row @ noise @ self._col.mT

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, -|L_r^-1 (X - loc) L_c^-T|^2 / 2 - log|L_r (x) L_c| - n m log(2 pi) / 2.

        Args:
            value: X, (..., n, m); batch dimensions broadcast against the distribution's
        """
        if self._validate_args:
            self._validate_sample(value)
        constant = 0.5 * self.event_shape.numel() * math.log(2 * math.pi)
        return -0.5 * self.squared_mahalanobis(value - self.loc) - self.scale_log_det() - constant

    def entropy(self) -> Tensor:
        """n m (1 + log(2 pi)) / 2 + log|L_r (x) L_c|, shaped as the batch."""
        constant = 0.5 * self.event_shape.numel() * (1 + math.log(2 * math.pi))
        return (self.scale_log_det() + constant).expand(self.batch_shape)

    def squared_mahalanobis(self, deviation: Tensor) -> Tensor:
        """|L_r^-1 D L_c^-T|^2 (Frobenius) of a deviation D from the mean, (..., n, m) to (...)."""
        whitened = solve_lower(self._col, solve_lower(self._row, deviation).mT)  # (..., m, n)
        return whitened.square().sum((-2, -1))

    def scale_log_det(self) -> Tensor:
        """log|L_r (x) L_c| = m log|L_r| + n log|L_c|, of a shape that broadcasts to the batch's."""
        n, m = self.event_shape
        row = self._row.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        col = self._col.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return m * row + n * col

    def to_multivariatenormal(self) -> MultivariateNormal:
        """The distribution of X.reshape(..., n m), dense: scale_tril = L_r (x) L_c, (..., n m, n m)."""
        scale_tril = kron(self._row, self._col)
        return MultivariateNormal(self.loc.flatten(-2), scale_tril=scale_tril, validate_args=self._validate_args)

    def _expanded(self, matrix: Tensor) -> Tensor:
        return matrix.expand(self.batch_shape + matrix.shape[-2:])


def _checked_batch_shape(loc: Tensor, row: Tensor, col: Tensor) -> torch.Size:
    """The batch shape the three parameters share; ValueError if they do not fit together."""
    given = f"loc {tuple(loc.shape)}, row_scale_tril {tuple(row.shape)}, col_scale_tril {tuple(col.shape)}"
    if loc.dim() < 2 or row.shape[-2:] != loc.shape[-2:-1] * 2 or col.shape[-2:] != loc.shape[-1:] * 2:
        raise ValueError(
            f"expected loc (..., n, m), row_scale_tril (..., n, n), col_scale_tril (..., m, m); got {given}"
        )
    if not loc.dtype == row.dtype == col.dtype or not loc.is_floating_point():
        raise ValueError(f"expected one floating dtype; got loc {loc.dtype}, scales {row.dtype} and {col.dtype}")
    batches = loc.shape[:-2], row.shape[:-2], col.shape[:-2]
    try:
        return torch.broadcast_shapes(*batches)
    except RuntimeError as error:
        raise ValueError(f"expected batch dimensions that broadcast; got {given}") from error
