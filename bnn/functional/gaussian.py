"""Gaussians: noise, whitening, and closed-form KL divergences in nats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

TrilPair = tuple[Tensor, Tensor]  # (L_r, L_c) of a matrix normal MN(0, L_r L_r^T, L_c L_c^T)


class KLError(ArithmeticError):
    """The KL of a layer is inf or NaN."""


def check_kl(kl: Tensor, layer: str) -> None:
    """Raises KLError unless `kl` is finite; looks only where that is cheap: on the CPU, outside of transforms."""
    if kl.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:
        value = kl.item()
    except RuntimeError:  # inside torch.func's transforms
        return
    if not math.isfinite(value):
        raise KLError(
            f"the KL of {layer} is {value:g}: its parameters are too large for {kl.dtype}, or NaN, or far outside a "
            "narrow prior; lower the learning rate, or look at its parameters and the prior's sd"
        )


def standard_normal(*shape: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise of `shape`, of the type and on the device of `like`."""
    if generator is None:  # torch.compile takes symbolic sizes without the argument only
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def kl_diagonal(mean: Tensor, sd: Tensor, prior_mean: float | Tensor, prior_sd: float) -> Tensor:
    """KL[N(mean, diag sd^2) || N(prior_mean, prior_sd^2 I)], summed over all entries.

    sum_i [ (s_i^2 + (m_i - m_p)^2) / (2 s_p^2) - log(s_i / s_p) - 1/2 ]
    """
    ratio = sd / prior_sd
    return (0.5 * (ratio.square() + ((mean - prior_mean) / prior_sd).square() - 1) - torch.log(ratio)).sum()


def kl_full(mean: Tensor, scale_tril: Tensor, prior_mean: Tensor, prior_sd: Tensor) -> Tensor:
    """KL[N(mean, T T^T) || N(prior_mean, diag prior_sd^2)] for vectors (n,) and a lower triangle T (n, n).

    1/2 [ |diag(prior_sd)^-1 T|^2 + |(mean - prior_mean) / prior_sd|^2 - n ] - sum_i log(T_ii / prior_sd_i)
    """
    fit = (scale_tril / prior_sd[:, None]).square().sum() + ((mean - prior_mean) / prior_sd).square().sum()
    return 0.5 * (fit - mean.numel()) - torch.log(scale_tril.diagonal() / prior_sd).sum()


# The prior of the inducing matrix U (n, m) is MN(0, Psi_r, Psi_c), or N(0, I) when whitened: `prior` is then None.


def kl_diagonal_u(mean: Tensor, sd: Tensor, prior: TrilPair | None = None) -> Tensor:
    """KL of independent entries N(mean_ij, sd_ij^2), both (n, m), to the prior of U.

    1/2 [ sum_ij (Psi_r^-1)_ii (Psi_c^-1)_jj s_ij^2 + |L_r^-1 m L_c^-T|^2 - n m ] - sum log s + log det
    """
    if prior is None and not torch.compiler.is_compiling():
        try:
            kl: Tensor = _KLToStandard.apply(mean, sd)  # type: ignore[no-untyped-call]
            return kl
        except RuntimeError:  # inside torch.func's transforms
            pass
    variance = sd.square()
    if prior is not None:
        row, col = (inverse_tril(tril).square().sum(0) for tril in prior)  # diagonals of Psi^-1
        variance = row[:, None] * col * variance
    fit = variance.sum() + whiten(mean, prior).square().sum()
    return 0.5 * (fit - mean.numel()) - torch.log(sd).sum() + _log_det(mean, prior)


class _KLToStandard(torch.autograd.Function):
    """sum 1/2 (m^2 + s^2 - 1) - log s, one step of backward instead of ten: every training step pays for it."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, sd: Tensor) -> Tensor:
        ctx.save_for_backward(mean, sd)
        return (torch.addcmul(sd * sd, mean, mean).sum() - mean.numel()) * 0.5 - sd.log().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        mean, sd = ctx.saved_tensors
        return grads[0] * mean, grads[0] * (sd - 1 / sd)


def kl_matrix_u(mean: Tensor, row_tril: Tensor, col_tril: Tensor, prior: TrilPair | None = None) -> Tensor:
    """KL[MN(mean, T_r T_r^T, T_c T_c^T) || prior of U] for mean (n, m), T_r (n, n), T_c (m, m).

    1/2 [ |L_r^-1 T_r|^2 |L_c^-1 T_c|^2 + |L_r^-1 m L_c^-T|^2 - n m ] - m log det T_r - n log det T_c + log det
    """
    n, m = mean.shape
    row, col = row_tril, col_tril
    if prior is not None:
        row, col = inverse_tril(prior[0]) @ row, inverse_tril(prior[1]) @ col
    fit = row.square().sum() * col.square().sum() + whiten(mean, prior).square().sum()
    log_det = m * row_tril.diagonal().log().sum() + n * col_tril.diagonal().log().sum()
    return 0.5 * (fit - n * m) - log_det + _log_det(mean, prior)


def kl_full_u(mean: Tensor, scale_tril: Tensor, prior: TrilPair | None = None) -> Tensor:
    """KL[N(vec mean, T T^T) || prior of U] for mean (n, m), vec row-major, T (n m, n m).

    1/2 [ sum_j |L_r^-1 T_j L_c^-T|^2 + |L_r^-1 m L_c^-T|^2 - n m ] - log det T + log det, T_j: column j as (n, m)
    """
    columns = scale_tril.T.reshape(-1, *mean.shape)
    fit = whiten(columns, prior).square().sum() + whiten(mean, prior).square().sum()
    return 0.5 * (fit - mean.numel()) - scale_tril.diagonal().log().sum() + _log_det(mean, prior)


def whiten(u: Tensor, prior: TrilPair | None) -> Tensor:
    """L_r^-1 U L_c^-T for U (..., n, m); `u` itself where it is whitened already (prior None)."""
    return u if prior is None else inverse_tril(prior[0]) @ u @ inverse_tril(prior[1]).mT


def inverse_tril(tril: Tensor) -> Tensor:
    """L^-1 of a lower triangle (n, n): one small solve, after which wide products are plain GEMMs."""
    eye = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
    return torch.linalg.solve_triangular(tril, eye, upper=False)


def _log_det(mean: Tensor, prior: TrilPair | None) -> Tensor | float:
    """1/2 log det (Psi_c (x) Psi_r) = m sum log (L_r)_ii + n sum log (L_c)_jj."""
    if prior is None:
        return 0.0
    n, m = mean.shape
    return m * prior[0].diagonal().log().sum() + n * prior[1].diagonal().log().sum()
