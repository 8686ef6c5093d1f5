"""The Gaussian over what a layer gives for one row, in closed form: prediction without a draw of the weights.

For a row x, t = A_c x, and independent entries u_ij ~ N(m_ij, S_ij^2), the entries of s = u t are independent, too:

    s_i ~ N((m t)_i, v_i),   v_i = sum_j S_ij^2 t_j^2
    E[y]   = sigma A_r^T m t
    Cov[y] = sigma^2 A_r^T diag(v) A_r + lamda^2 sigma^2 (|x|^2 I - |t|^2 A_r^T A_r)

Of an unwhitened U = L_r u L_c^T it is the entries of U that are independent: the same with L_c^-T t and L_r^-T A_r in
the place of t and A_r in the first term.

Shapes: n rows; x and |x|^2 count the bias's 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import TrilPair
from bnn.functional.inducing import Factors


class Residual(NamedTuple):
    """What W has left given u, on n rows."""

    a: Tensor  # lamda sigma |x|, (n,)
    b: Tensor  # lamda sigma sqrt(|x|^2 - |t|^2), (n,)
    row: Factors


class RowGaussian(NamedTuple):
    """The outputs y = B^T s + residual of n rows, each by itself; the entries of s are independent."""

    center: Tensor  # E[s], (n, M_out)
    sds: Tensor | None  # of s, (n, M_out); None where u is a point
    B: Tensor  # (M_out, d_out), sigma included
    residual: Residual | None  # None where lamda = 0


def row_gaussian(
    T: Tensor,
    mean: Tensor,
    sd: Tensor | None,
    row: Factors,
    sigma: float,
    prior: TrilPair | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
) -> RowGaussian:
    """The Gaussian of the outputs of rows.

    Args:
        T: the rows t = A_c x, (n, M_in).
        mean, sd: m and S of independent entries, (M_out, M_in); of u, or of U if there is a `prior`. No sd: a point.
        row: the factors of the rows of W.
        sigma: the prior sd of the weights.
        prior: (L_r, L_c), where U is not whitened.
        norms: lamda sigma times a = |x| and b = sqrt(|x|^2 - |t|^2), (n,) each; None where lamda = 0.
    """
    B, t = sigma * row.A, T
    if prior is not None:
        B = sigma * torch.linalg.solve_triangular(prior[0].mT, row.A, upper=True)
        t = torch.linalg.solve_triangular(prior[1], T, upper=False, left=False)  # rows L_c^-T t
    sds = None
    if sd is not None:
        size = t.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(t.dtype).tiny)  # squares must not overflow
        sds = size * ((t / size).square() @ sd.square().mT).sqrt()
    return RowGaussian(t @ mean.mT, sds, B, None if norms is None else Residual(*norms, row))


def output_mean(rows: RowGaussian) -> Tensor:
    """E[y], (n, d_out)."""
    return rows.center @ rows.B


def output_variance(rows: RowGaussian) -> Tensor:
    """The diagonal of Cov[y], (n, d_out)."""
    found = torch.zeros_like(rows.center[:, :1]) if rows.sds is None else rows.sds.square() @ rows.B.square()
    if rows.residual is not None:
        a, b, row = rows.residual
        P = row.A.square().sum(0)  # the diagonal of A_r^T A_r
        found = found + a.square()[:, None] * (1 - P) + b.square()[:, None] * P
    return found.expand(len(rows.center), rows.B.shape[1])


def noise_width(rows: RowGaussian) -> int:
    """How many standard normals one draw of a row takes."""
    m_out, d_out = rows.B.shape
    return (0 if rows.sds is None else m_out) + (0 if rows.residual is None else d_out + m_out)


def draw_outputs(rows: RowGaussian, noise: Tensor) -> Tensor:
    """K draws of y, (K, n, d_out), from noise (K, n, noise_width), or (K, 1, noise_width) that all rows share.

    y = B^T (E[s] + sqrt(v) n1) + lamda sigma [ |x| n2 - (|x| - b) A_r^T (A_r n2 + R_r n3) ],   noise = [n1 n2 n3]

    Every row's distribution is exact; no factorisation of Cov[y] is needed (way 5 of `bnn.functional.draws`).
    """
    m_out, d_out = rows.B.shape
    first = 0 if rows.sds is None else m_out
    s = rows.center if rows.sds is None else torch.addcmul(rows.center, rows.sds, noise[..., :m_out])
    y = s @ rows.B
    if rows.residual is None:
        return y.expand(len(noise), *y.shape[-2:])
    a, b, row = rows.residual
    n2, n3 = noise[..., first:].split([d_out, m_out], dim=-1)
    back = (n2 @ row.A.mT + n3 @ row.R.mT) @ row.A
    return y + a[:, None] * n2 - (a - b)[:, None] * back
