"""Five ways to draw from q(W|u) that are faster than the textbook rule of `bnn.functional.inducing`, and as exact.

W splits into two stages, U_c given u and W given U_c, which is where the cost splits:

    C = sigma [ A_r^T u + lamda F_r E2 ]        `draw_columns`
    W = C A_c + lamda sigma E1 F_c^T            `draw_dense`

where F F^T = I - P (`bnn.functional.inducing`). The covariances add up: P_c (x) (I - P_r) + (I - P_c) (x) I =
I - P_c (x) P_r. A layer that only needs its outputs never builds W. For the rows X (p, d_in) of one input and
T = X A_c^T (p, M_in), given C,

    Y = T C^T + residual,   residual columns ~ N(0, lamda^2 sigma^2 (X X^T - T T^T))

so the residual can be drawn for all rows of an input at once (`joint`), or for each row by itself (`per_row`), which
keeps every row's distribution but not the correlation between rows. With fewer rows than M_in, C itself need not be
drawn (`..._without_columns`).

Shapes: K draws, N inputs, p rows each; T is (K, N, p, M_in), or (1, N, p, M_in) where all draws see the same input, C
is (K, d_out, M_in) and u is (K, M_out, M_in). Where rows are drawn one by one they may as well be (K, N p, ...). Noise
is an argument everywhere: outputs are linear in it, so that their exact covariance can be read off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnn.functional.gaussian import standard_normal
from bnn.functional.inducing import Factors, without_projection


class JointNoise(NamedTuple):
    """Noise of both stages on the rows of an input, drawn together."""

    N1: Tensor  # (..., p, d_out)
    N2: Tensor  # (..., p, d_out)


def column_noise(row: Factors, col: Factors, *batch: int, generator: torch.Generator | None = None) -> Tensor:
    """Noise E2 (..., d_out, M_in) for `draw_columns`."""
    return standard_normal(*batch, row.A.shape[1], len(col.A), like=row.A, generator=generator)


def dense_noise(row: Factors, col: Factors, *batch: int, generator: torch.Generator | None = None) -> Tensor:
    """Noise E1 (..., d_out, d_in) for `draw_dense`."""
    return standard_normal(*batch, row.A.shape[1], col.A.shape[1], like=row.A, generator=generator)


def draw_columns(
    u: Tensor, row: Factors, lamda: Tensor | float, sigma: float, E2: Tensor | None, GA: Tensor | None = None
) -> Tensor:
    """First stage: C (..., d_out, M_in), the inducing columns given u, which identify the draw.

    C = sigma [ A_r^T u + lamda F_r E2 ],   F_r E2 = E2 - A_r^T G_r A_r E2,   without noise C = sigma A_r^T u

    With `GA` = G_r A_r at hand, u (K, M_out, M_in) and a number for lamda these are two products and nothing else.
    """
    if E2 is None:
        return sigma * (row.A.mT @ u)
    if GA is not None and isinstance(lamda, float):
        k = len(E2)
        rest = torch.baddbmm(u, GA.expand(k, *GA.shape), E2, alpha=-lamda)
        return torch.baddbmm(E2, row.A.mT.expand(k, *row.A.mT.shape), rest, beta=sigma * lamda, alpha=sigma)
    return sigma * (lamda * E2 + row.A.mT @ (u - lamda * (row.G @ (row.A @ E2))))


def draw_dense(C: Tensor, col: Factors, lamda: Tensor | float, sigma: float, E1: Tensor | None) -> Tensor:
    """Way 1. Second stage: the weight matrix W (..., d_out, d_in) given C.

    W = C A_c + lamda sigma E1 F_c^T,   E1 F_c^T = E1 - E1 A_c^T G_c^T A_c,   without noise W = C A_c
    """
    if E1 is None:
        return C @ col.A
    scale = lamda * sigma
    projected = C - scale * (E1 @ col.A.mT @ col.G.mT)
    return torch.addcmul(projected @ col.A, E1, torch.as_tensor(scale, dtype=E1.dtype, device=E1.device))


def draw_weights(u: Tensor, row: Factors, col: Factors, lamda: Tensor, sigma: float, E2: Tensor, E1: Tensor) -> Tensor:
    """Both stages at once, W (K, d_out, d_in), with a backward of their own: fewer steps for autograd to remember."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        try:
            W: Tensor = _BothStages.apply(u, row.A, row.G, col.A, col.G, lamda, sigma, E2, E1)  # type: ignore[no-untyped-call]
            return W
        except RuntimeError:  # inside torch.func's transforms
            pass
    return draw_dense(draw_columns(u, row, lamda, sigma, E2), col, lamda, sigma, E1)


class _BothStages(torch.autograd.Function):
    """P = A_r E2, Q = G_r P, v = u - lamda Q, C = sigma (lamda E2 + A_r^T v), X = E1 A_c^T, Y = X G_c^T,
    c = C - lamda sigma Y, W = c A_c + lamda sigma E1."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        A_r: Tensor,
        G_r: Tensor,
        A_c: Tensor,
        G_c: Tensor,
        lamda: Tensor,
        sigma: float,
        E2: Tensor,
        E1: Tensor,
    ) -> Tensor:
        P = A_r @ E2
        Q = G_r @ P
        v = torch.addcmul(u, Q, -lamda)
        C = torch.addcmul(A_r.mT @ v, E2, lamda) * sigma
        X = E1 @ A_c.mT
        Y = X @ G_c.mT
        scale = lamda * sigma
        c = torch.addcmul(C, Y, -scale)
        ctx.save_for_backward(u, A_r, G_r, A_c, G_c, lamda, E2, E1)
        ctx.inner, ctx.sigma = (P, Q, v, X, Y, c, scale), sigma
        return torch.addcmul(c @ A_c, E1, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, A_r, G_r, A_c, G_c, lamda, E2, E1 = ctx.saved_tensors
        (dW,), (P, Q, v, X, Y, c, scale), sigma = grads, ctx.inner, ctx.sigma
        if torch.is_grad_enabled():  # somebody differentiates the gradient: by torch's own rules, then
            tensors = (u, A_r, G_r, A_c, G_c, lamda)
            row, col = (Factors(A, A, A, G) for A, G in ((A_r, G_r), (A_c, G_c)))  # R and L have no part in it
            W = draw_dense(draw_columns(u, row, lamda, sigma, E2), col, lamda, sigma, E1)
            needed = [tensor for tensor in tensors if tensor.requires_grad]
            found = iter(torch.autograd.grad(W, needed, dW, create_graph=True, allow_unused=True))
            return *(next(found) if tensor.requires_grad else None for tensor in tensors), None, None, None
        dc = dW @ A_c.mT
        dY = dc * -scale
        dX = dY @ G_c
        dA_c = _summed(c, dW) + _summed(dX, E1)
        dv = (A_r @ dc) * sigma
        dQ = dv * -lamda
        dP = G_r.mT @ dQ
        dA_r = _summed(v.mT, dc.mT) * sigma + _summed(dP.mT, E2.mT)
        d_lamda = sigma * (_inner(dW, E1) + _inner(dc, E2 - Y)) - _inner(dv, Q)
        return dv, dA_r, _summed(dQ.mT, P.mT), dA_c, _summed(dY, X), d_lamda.reshape(lamda.shape), None, None, None


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """sum_k left_k^T right_k for left (K, n, a) and right (K, n, b)."""
    return left[0].mT @ right[0] if len(left) == 1 else left.flatten(0, 1).mT @ right.flatten(0, 1)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.reshape(-1), other.reshape(-1))


def joint(T: Tensor, C: Tensor, L: Tensor, scale: Tensor | float, N: Tensor) -> Tensor:
    """Way 2. Y = T C^T + lamda sigma L N, (K, N, p, d_out), with L L^T = X X^T - T T^T and N (K, N, p, d_out).

    `scale` is lamda sigma. Exact for all rows of an input together.
    """
    return joint_around(mean_rows(T, C), L, scale, N)


def joint_around(mean: Tensor, L: Tensor, scale: Tensor | float, N: Tensor) -> Tensor:
    """Way 2 around outputs T C^T that are at hand, (K, N, p, d_out)."""
    wide = N.shape[-1] > L.shape[-1]  # the smaller one is scaled
    return _plus_product(mean, scale * L if wide else L, N if wide else scale * N)


def joint_without_columns(
    T: Tensor, u: Tensor, row: Factors, L: Tensor, L_T: Tensor, scale: Tensor | float, sigma: float, noise: JointNoise
) -> Tensor:
    """Way 3. Both stages on the rows, for few rows: L_T L_T^T = T T^T.

    Y = sigma T u^T A_r + lamda sigma [ L N1 + L_T N2 F_r^T ]
    """
    N1, N2 = noise
    mean = mean_rows_without_columns(T, u, row, sigma)
    return mean + scale * (L @ N1 + L_T @ without_projection(N2, row))


def inducing_rows_on_rows(
    T: Tensor, u: Tensor, GA: Tensor, L_T: Tensor, scale: Tensor | float, sigma: float, N2: Tensor
) -> Tensor:
    """S (K, N, q, M_out) with T C^T = S A_r + lamda sigma L_T N2, for the rows of T (K, N, q, M_in), C not drawn.

    S = sigma T u^T - lamda sigma L_T N2 (G_r A_r)^T,   L_T L_T^T = T T^T,   `scale` is lamda sigma, `GA` is G_r A_r
    """
    return _plus_product(mean_rows(T, u if sigma == 1 else sigma * u), -scale * L_T, N2 @ GA.mT)


def per_row(T: Tensor, C: Tensor, b: Tensor, scale: Tensor | float, n: Tensor) -> Tensor:
    """Way 4. y = C t + lamda sigma b n for every row, with b = sqrt(|x|^2 - |t|^2) (K, N, p) and n (K, N, p, d_out)."""
    return per_row_around(mean_rows(T, C), b, scale, n)


def per_row_around(mean: Tensor, b: Tensor, scale: Tensor | float, n: Tensor) -> Tensor:
    """Way 4 around outputs C t that are at hand, (K, N, p, d_out)."""
    return torch.addcmul(mean, (scale * b)[..., None], n)


def per_row_without_columns(
    T: Tensor,
    u: Tensor,
    row: Factors,
    a: Tensor,
    b: Tensor,
    scale: Tensor | float,
    sigma: float,
    noise: Tensor,
    joined: Tensor | None = None,
) -> Tensor:
    """Way 5. Both stages on single rows, noise (K, N, p, d_out + M_out): a = |x|, b = sqrt(|x|^2 - |t|^2), (K, N, p).

    y = sigma A_r^T u t + lamda sigma [ a n - (a - b) A_r^T (A_r n + R_r m) ],   noise = [n m]

    The covariance given x is b^2 I + |t|^2 (I - P_r): that of C t plus the residual. `joined` is [A_r R_r], if at hand.
    """
    joined = torch.cat([row.A, row.R], dim=1) if joined is None else joined
    a, b = a[..., None] * scale, b[..., None] * scale
    back = noise @ joined.mT  # A_r n + R_r m
    inner = torch.addcmul(mean_rows(T, u if sigma == 1 else sigma * u), b - a, back)
    return torch.addcmul(inner @ row.A, a, noise[..., : row.A.shape[1]])


def mean_rows(T: Tensor, C: Tensor) -> Tensor:
    """T C^T (K, ..., d_out): one product over all rows per draw. K draws of a shared T are one product in all."""
    k, shape = len(C), T.shape[1:-1]
    if len(T) == k:
        return torch.bmm(T, C.mT) if T.ndim == 3 else torch.bmm(T.flatten(1, -2), C.mT).reshape(k, *shape, C.shape[1])
    product = T.flatten(0, -2) @ C.flatten(0, 1).mT  # (N p, K d_out)
    return product.reshape(*shape, k, C.shape[1]).movedim(-2, 0)


def mean_rows_without_columns(T: Tensor, u: Tensor, row: Factors, sigma: float) -> Tensor:
    """sigma T u^T A_r, (K, N, p, d_out): through the M_out inducing rows instead of C."""
    return mean_rows(T, u if sigma == 1 else sigma * u) @ row.A


def _plus_product(y: Tensor, L: Tensor, N: Tensor) -> Tensor:
    """y + L N over (K, N) batches of (p, q) times (q, d_out), in one pass."""
    batch = N.shape[:2]
    L = L.expand(*batch, *L.shape[2:]).flatten(0, 1)
    return torch.baddbmm(y.flatten(0, 1), L, N.flatten(0, 1)).reshape(*batch, L.shape[1], N.shape[-1])
