"""Numerics shared by every family: positive scales, packed triangles, and the one place where Cholesky is rescued."""

from __future__ import annotations

import contextlib
import math
import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTPLUS_FLOOR = -30.0  # softplus(-30) is 9e-14: still positive in float32, so that no log of an sd is -inf


class NumericalWarning(UserWarning):
    """A factorisation needed help; the result is that of a slightly different matrix."""


class FactorisationError(RuntimeError):
    """A matrix that must be positive definite is not, and no reasonable jitter makes it so."""


def safe_cholesky(matrix: Tensor, name: str = "matrix") -> Tensor:
    """The lower Cholesky factor of `matrix` (..., n, n), rescued by jitter when rounding made it indefinite.

    A healthy matrix is factorised untouched. Otherwise jitter * mean(diag) is added to the diagonal, growing tenfold
    from the precision of the type up to 1e-3, with a `NumericalWarning` that says how much was needed.

    Raises:
        FactorisationError: the matrix holds NaN or inf, or stays indefinite.
    """
    try:
        # No look at the values, so that vmap and torch.compile can pass; 0 * inf is NaN, a pivot that LAPACK refuses.
        return torch.linalg.cholesky(matrix + 0 * matrix)
    except torch.linalg.LinAlgError:
        return _cholesky_with_jitter(matrix, name)


def _cholesky_with_jitter(matrix: Tensor, name: str) -> Tensor:
    broken = int((~torch.isfinite(matrix)).sum())
    if broken:
        raise FactorisationError(
            f"{name} of shape {tuple(matrix.shape)} holds {broken} NaN or infinite entries, so it has no Cholesky "
            "factor; the parameters behind it have diverged: lower the learning rate or clip gradients"
        )
    scale = matrix.diagonal(dim1=-2, dim2=-1).abs().mean(-1)[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    jitter = torch.finfo(matrix.dtype).eps
    while jitter < 1e-3:
        jitter *= 10
        try:
            factor = torch.linalg.cholesky(matrix + jitter * scale * eye)
        except torch.linalg.LinAlgError:
            continue
        warnings.warn(
            f"{name} of shape {tuple(matrix.shape)} was not positive definite; added {jitter:.0e} of its mean diagonal",
            NumericalWarning,
            stacklevel=4,
        )
        return factor
    raise FactorisationError(
        f"{name} of shape {tuple(matrix.shape)} is not positive definite even with {jitter:.0e} of its mean diagonal "
        "added; it should be Z Z^T + D^2 with D > 0: check how its parameters were set"
    )


def softplus_value(raw: Tensor, cap: float | Tensor = math.inf) -> Tensor:
    """min(softplus(max(raw, -30)), cap), without a gradient that anybody wants: see `positive`."""
    value = F.softplus(raw.clamp(min=SOFTPLUS_FLOOR))
    return value if isinstance(cap, float) and cap == math.inf else value.clamp(max=cap)


def softplus_grad(raw: Tensor, grad: Tensor, cap: float | Tensor = math.inf) -> Tensor:
    """The gradient for `raw`: that of softplus, beyond both bounds too, but 0 where it would push `raw` further out."""
    blocked = (raw <= SOFTPLUS_FLOOR) & (grad > 0)  # a descent step would lower raw still further
    if not (isinstance(cap, float) and cap == math.inf):
        blocked = blocked | (F.softplus(raw) >= cap) & (grad < 0)  # ... or raise it further above the cap
    return (grad * torch.sigmoid(raw.clamp(min=SOFTPLUS_FLOOR))).masked_fill(blocked, 0.0)


class _Positive(torch.autograd.Function):
    """`softplus_value` with `softplus_grad`."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, cap: float) -> Tensor:
        ctx.save_for_backward(raw)
        ctx.cap = cap
        return softplus_value(raw, cap)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return softplus_grad(ctx.saved_tensors[0], grads[0], ctx.cap), None


class _PositiveTransformed(torch.autograd.Function):
    """The same in the form that torch.func's transforms and torch.compile want, which takes four times as long."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor, cap: float) -> Tensor:
        return softplus_value(raw, cap)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.cap = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return softplus_grad(ctx.saved_tensors[0], grads[0], ctx.cap), None


def positive(raw: Tensor, cap: float | None = None) -> Tensor:
    """min(softplus(max(raw, -30)), cap), never 0 and never with a dead gradient; in float32 or better.

    The gradient is that of softplus, also beyond the bounds, and is zeroed only where following it would push `raw`
    further past one: a scale at its cap comes back as soon as the loss wants it smaller.

    >>> raw = torch.tensor([5.0], requires_grad=True)
    >>> positive(raw, cap=0.1).backward()
    >>> raw.grad > 0.9
    tensor([True])
    """
    raw, cap = at_least_float32(raw), math.inf if cap is None else cap
    if not (torch.is_grad_enabled() and raw.requires_grad):
        return softplus_value(raw, cap)
    result: Tensor
    if torch.compiler.is_compiling():
        result = _PositiveTransformed.apply(raw, cap)  # type: ignore[no-untyped-call]
        return result
    try:
        result = _Positive.apply(raw, cap)  # type: ignore[no-untyped-call]
    except RuntimeError:  # inside a transform
        result = _PositiveTransformed.apply(raw, cap)  # type: ignore[no-untyped-call]
    return result


def inverse_softplus(value: Tensor) -> Tensor:
    """The raw value that softplus maps to `value` > 0.

    >>> F.softplus(inverse_softplus(torch.tensor(1e-3)))
    tensor(0.0010)
    """
    return value + torch.log(-torch.expm1(-value))


def triangle_unit(n: int) -> float:
    """In which units the strict lower part of a scale T (n, n) is trained: 1 / n, rounded down to a power of two.

    A step of Adam at rate r moves every entry by about r, whatever its gradient. A row of T has up to n of them, so in
    units of 1 one step would add r sqrt(n) to the sd of a weight (0.2 at r = 5e-3 and n = 1560), in these r / sqrt(n).

    >>> triangle_unit(1000) * 1024
    1.0
    """
    return 2.0 ** -math.ceil(math.log2(max(1, n)))


def unpack_tril(packed: Tensor, n: int, unit: float = 1.0) -> Tensor:
    """A lower triangle (n, n) from its softplus-diagonal (first n entries), then its strict lower part row by row.

    Args:
        unit: what entries of the strict lower part are multiplied by.
    """
    packed = at_least_float32(packed)
    rows, cols = torch.tril_indices(n, n, offset=-1, device=packed.device)
    lower = torch.zeros(n, n, dtype=packed.dtype, device=packed.device)
    below = packed[n:] if unit == 1.0 else packed[n:] * unit
    return lower.index_put((rows, cols), below) + torch.diag(positive(packed[:n]))


def pack_tril(tril: Tensor) -> Tensor:
    """The inverse of `unpack_tril`: (n, n) with a positive diagonal to (n (n + 1) / 2,)."""
    rows, cols = torch.tril_indices(len(tril), len(tril), offset=-1, device=tril.device)
    return torch.cat([inverse_softplus(tril.diagonal()), tril[rows, cols]])


def row_norms(tril: Tensor) -> Tensor:
    """sqrt(diag(T T^T)) (n,) of a scale T (n, n), in float64: the standard deviations."""
    return tril.double().square().sum(1).sqrt()


def safe_sqrt(x: Tensor) -> Tensor:
    """sqrt(max(x, 0)) whose gradient stays finite where x is 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def squared_norm(x: Tensor) -> Tensor:
    """|x|^2 over the last dimension; without gradients in one pass over x."""
    return x.square().sum(-1) if x.requires_grad else torch.linalg.vector_norm(x, dim=-1).square()


def at_least_float32(x: Tensor) -> Tensor:
    """`x` itself, or in float32 if it is of a half-precision type."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Switches autocast off on the device of `x`: a bfloat16 Gram matrix is not positive definite."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _NOTHING


def fits(squares: Tensor) -> bool:
    """Whether no square is beyond what its type holds; False where looking would make the device wait."""
    if torch.compiler.is_compiling() or squares.numel() == 0:
        return True
    if squares.device.type != "cpu":
        return False
    try:
        total = squares.sum().item()
        return math.isfinite(total) and total > 1e-30  # nor did all of them vanish
    except RuntimeError:  # inside torch.vmap there is no looking
        return True


def largest(x: Tensor, least: float = 0.0) -> Tensor:
    """The largest entry of every input of x (K, N, ...), in absolute value, (K, N); 1 where it is 0 or not finite."""
    size = x.detach().flatten(2).abs().amax(2) if x.numel() else x.new_ones(x.shape[:2])
    return torch.where(torch.isfinite(size) & (size > 0), size, 1.0).clamp(min=least)


def over(size: Tensor, ndim: int) -> Tensor:
    """`size` (K, N) as (K, N, 1, ..., 1)."""
    return size.reshape(*size.shape, *[1] * (ndim - 2))


_NOTHING = contextlib.nullcontext()


def semidefinite_cholesky(matrix: Tensor, whole: Tensor | None = None) -> Tensor:
    """A lower triangle L with L L^T = `matrix` (..., n, n) up to rounding, for matrices that may be singular.

    For Gram matrices of rows that may be zero or equal: a jitter of n/4 roundings of the mean diagonal keeps pivots
    positive (and gradients finite); a matrix that needs more gets tenfold steps of it, by itself.

    Args:
        whole: where `matrix` is a difference, what it was taken from: it sets the size of roundings.

    Raises:
        FactorisationError: the matrix holds NaN, or is indefinite beyond rounding.
    """
    return _cholesky_of_own(matrix.clone(), _mean_diagonal(matrix if whole is None else whole))


def residual_cholesky(gram: Tensor, T: Tensor) -> Tensor:
    """`semidefinite_cholesky` of X X^T - T T^T for `gram` = X X^T (B, p, p), which it overwrites, and T (B, p, M)."""
    size = _mean_diagonal(gram)
    return _cholesky_of_own(gram.baddbmm_(T, T.mT, alpha=-1), size)


def difference_cholesky(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """The same for the difference itself (B, p, p), which it overwrites, given the diagonal of X X^T (B, p)."""
    return _cholesky_of_own(matrix, diagonal.detach().mean(-1))


def _mean_diagonal(matrix: Tensor) -> Tensor:
    return matrix.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0).mean(-1)


def _cholesky_of_own(matrix: Tensor, size: Tensor) -> Tensor:
    """The factor of `matrix` plus jitter in units of `size`; changes `matrix`."""
    if matrix.numel() == 0:
        return matrix
    n, eps = matrix.shape[-1], torch.finfo(matrix.dtype).eps
    jitter = (0.25 * n + 4) * eps * size + torch.finfo(matrix.dtype).tiny ** 0.5
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    if torch.compiler.is_compiling():  # no look at the values: start where all but hopeless cases succeed
        diagonal.add_(100 * jitter[..., None])
        return torch.linalg.cholesky_ex(matrix)[0]
    diagonal.add_(jitter[..., None])
    for _ in range(5):
        factor, info = torch.linalg.cholesky_ex(matrix)
        if not info.any():
            return factor
        more = torch.where(info > 0, 9 * jitter, 0.0)  # ten times as much in all
        matrix, jitter = matrix + torch.diag_embed(more[..., None].expand(*more.shape, n)), jitter + more
    raise FactorisationError(
        f"a Gram matrix of shape {tuple(matrix.shape)} is not positive semi-definite: its rows hold NaN or inf"
    )
