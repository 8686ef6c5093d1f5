"""KL divergences between the matrix normal and its Gaussian relatives, for `torch.distributions.kl_divergence`.

Between Gaussians of dimension N with scales S_p and S_q (Sigma = S S^T),

    KL[p||q] = 1/2 (tr(Sigma_q^-1 Sigma_p) + |S_q^-1 (mu_p - mu_q)|^2 - N) + log|S_q| - log|S_p|

and each pair below has its own cheap way to the trace. An elementwise `Normal` counts its last two batch dimensions as
the matrix, a `MultivariateNormal` is over the matrix row by row. Results have the broadcast batch shape.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, kl_divergence, register_kl

from bnn.distributions.matrix_normal import MatrixNormal, solve_lower


def kl_matrix_matrix(p: MatrixNormal, q: MatrixNormal) -> Tensor:
    """KL of two matrix normals; the trace is |L_r,q^-1 L_r,p|^2 |L_c,q^-1 L_c,p|^2."""
    _check_event("q", q.event_shape, p)
    row = solve_lower(q._row, p._row).square().sum((-2, -1))
    col = solve_lower(q._col, p._col).square().sum((-2, -1))
    quadratic = row * col + q.squared_mahalanobis(p.loc - q.loc)
    return 0.5 * (quadratic - p.event_shape.numel()) + q.scale_log_det() - p.scale_log_det()


def kl_matrix_normal(p: MatrixNormal, q: Normal) -> Tensor:
    """KL to independent entries; only the variances of p enter the trace."""
    _check_event("q", q.batch_shape[-2:], p)
    quadratic = (p.variance + (p.loc - q.loc).square()) / q.scale.square()
    terms = 0.5 * (quadratic - 1) + q.scale.log()  # (..., n, m)
    return terms.sum((-2, -1)) - p.scale_log_det()


def kl_normal_matrix(p: Normal, q: MatrixNormal) -> Tensor:
    """KL from independent entries; only the diagonals of q's precisions enter the trace."""
    _check_event("p", p.batch_shape[-2:], q)
    row = _precision_diagonal(q._row).unsqueeze(-1)  # (..., n, 1)
    col = _precision_diagonal(q._col).unsqueeze(-2)  # (..., 1, m)
    terms = 0.5 * (row * col * p.scale.square() - 1) - p.scale.log()  # (..., n, m)
    return terms.sum((-2, -1)) + 0.5 * q.squared_mahalanobis(p.loc - q.loc) + q.scale_log_det()


def kl_matrix_independent(p: MatrixNormal, q: Independent[Distribution]) -> Tensor:
    """KL to `Independent(Normal, 2)`."""
    _check_event("q", q.event_shape, p)
    return kl_matrix_normal(p, _base_normal(q))


def kl_independent_matrix(p: Independent[Distribution], q: MatrixNormal) -> Tensor:
    """KL from `Independent(Normal, 2)`."""
    _check_event("p", p.event_shape, q)
    return kl_normal_matrix(_base_normal(p), q)


def kl_matrix_multivariate(p: MatrixNormal, q: MultivariateNormal) -> Tensor:
    """KL to a dense Gaussian; q is (n m, n m) already, so p may be too."""
    _check_event("q", q.event_shape, p, flat=True)
    return kl_divergence(p.to_multivariatenormal(), q)


def kl_multivariate_matrix(p: MultivariateNormal, q: MatrixNormal) -> Tensor:
    """KL from a dense Gaussian; the trace whitens the columns of p's scale, each as an n x m matrix."""
    _check_event("p", p.event_shape, q, flat=True)
    deviation = _as_matrix(p.loc, q) - q.loc  # (..., n, m)
    scale_tril: Tensor = p.scale_tril.expand(*deviation.shape[:-2], -1, -1)  # (..., n m, n m)
    columns = _as_matrix(scale_tril.movedim(-1, 0), q)  # (n m, ..., n, m)
    quadratic = q.squared_mahalanobis(columns).sum(0) + q.squared_mahalanobis(deviation)
    log_det_p = scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (quadratic - q.event_shape.numel()) + q.scale_log_det() - log_det_p


def _precision_diagonal(scale_tril: Tensor) -> Tensor:
    """diag((L L^T)^-1), the squared column norms of L^-1, (..., n, n) to (..., n)."""
    identity = torch.eye(scale_tril.shape[-1], dtype=scale_tril.dtype, device=scale_tril.device)
    return solve_lower(scale_tril, identity).square().sum(-2)


def _as_matrix(vector: Tensor, matrix: MatrixNormal) -> Tensor:
    return vector.reshape(vector.shape[:-1] + matrix.event_shape)


def _base_normal(distribution: Independent[Distribution]) -> Normal:
    base = distribution.base_dist
    while isinstance(base, Independent):
        base = base.base_dist
    if not isinstance(base, Normal):
        raise NotImplementedError(f"KL with MatrixNormal needs Independent over Normal; got {type(base).__name__}")
    return base


def _check_event(name: str, event_shape: torch.Size, matrix: MatrixNormal, flat: bool = False) -> None:
    """ValueError unless the event shape of p or q (its `name`) is that of the matrix, or of its vector if `flat`."""
    expected = (matrix.event_shape.numel(),) if flat else tuple(matrix.event_shape)
    if tuple(event_shape) != expected:
        raise ValueError(
            f"expected {name} over {expected}, to fit the MatrixNormal; got {tuple(event_shape)}. A Normal has the "
            "matrix as its last two batch dimensions (expand it), a MultivariateNormal is over X.reshape(n * m)"
        )


_pairs = {
    (MatrixNormal, MatrixNormal): kl_matrix_matrix,
    (MatrixNormal, Normal): kl_matrix_normal,
    (Normal, MatrixNormal): kl_normal_matrix,
    (MatrixNormal, Independent): kl_matrix_independent,
    (Independent, MatrixNormal): kl_independent_matrix,
    (MatrixNormal, MultivariateNormal): kl_matrix_multivariate,
    (MultivariateNormal, MatrixNormal): kl_multivariate_matrix,
}
for _types, _divergence in _pairs.items():
    register_kl(*_types)(_divergence)
