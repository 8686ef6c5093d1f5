"""What all layers need of their parameters at once, with backwards of their own: a training step pays for it each time.

Per side, as in `bnn.functional.inducing`: Psi = Z Z^T + D^2, L = chol(Psi), N = L^-1, A = N Z, R = N D,
G = (I + R)^-1. Sides of one M are one batch, whatever their widths: one Cholesky factorisation and two inversions of
(n, M, M) instead of n of each. The gradient, given those of A, R, L and G (Phi takes the lower triangle and halves its
diagonal, sym(X) = (X + X^T) / 2):

    dR'  = dR - G^T dG G^T
    dN   = dA Z^T + dR' D
    dPsi = N^T sym(Phi(L^T dL - dN N^T)) N
    dZ   = N^T dA + 2 dPsi Z
    dD   = diag(N^T dR') + 2 D diag(dPsi)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bnn.functional.gaussian import inverse_tril
from bnn.functional.inducing import Factors, factor, needs_double
from bnn.functional.linalg import at_least_float32, positive, softplus_grad, softplus_value, without_autocast

Sides = tuple[Tensor, Tensor, Tensor, Tensor]  # z_row, _d_row, z_col, _d_col


def factor_together(layers: Sequence[Sides]) -> list[tuple[Factors, Factors]]:
    """The factors of rows and columns of every layer, from Z and the raw values of D.

    [] where they have to be computed one by one: inside torch.func's transforms, or where some Psi needs rescuing.
    """
    sides = [side for layer in layers for side in (layer[:2], layer[2:])]
    groups: dict[Any, list[int]] = {}
    for i, (z, _) in enumerate(sides):
        groups.setdefault((len(z), z.dtype, z.device), []).append(i)
    found: dict[int, Factors] = {}
    for same in groups.values():
        try:
            parts = _Together.apply(*(sides[i][0] for i in same), *(sides[i][1] for i in same))  # type: ignore[no-untyped-call]
        except RuntimeError:
            return []
        n = len(same)
        found |= {i: Factors(*parts[place::n]) for place, i in enumerate(same)}
    return [(found[2 * i], found[2 * i + 1]) for i in range(len(layers))]


class _Together(torch.autograd.Function):
    """(Z_1, ..., Z_n, raw D_1, ..., raw D_n) -> A_1, ..., A_n, R_1, ..., R_n, L_1, ..., L_n, G_1, ..., G_n."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        n = len(tensors) // 2
        with without_autocast(tensors[0]):
            zs, raw = [at_least_float32(z) for z in tensors[:n]], at_least_float32(torch.stack(tensors[n:]))
            dtype, wide = zs[0].dtype, [z.double() if needs_double(z) else z for z in zs]
            grams = [z @ z.mT for z in wide]
            if any(z.dtype != dtype for z in wide):  # one side that needs it makes the small matrices of all double
                grams, raw = [gram.double() for gram in grams], raw.double()
            psi, d = torch.stack(grams), softplus_value(raw)
            psi.diagonal(dim1=-2, dim2=-1).add_(d.square())
            L, info = torch.linalg.cholesky_ex(psi + 0 * psi)  # 0 * inf is NaN, which no factorisation survives
            if info.any():
                raise RuntimeError("not positive definite")
            N = inverse_tril(L)
            R = N * d[:, None]
            G = inverse_tril(R + torch.eye(R.shape[-1], dtype=R.dtype, device=R.device))
            As = [(N_i.to(z.dtype) @ z).to(dtype) for N_i, z in zip(N, wide, strict=True)]
        ctx.save_for_backward(*tensors)
        ctx.small = raw, d, L, N, G
        return *As, *R.to(dtype).unbind(), *L.to(dtype).unbind(), *G.to(dtype).unbind()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        n = len(tensors) // 2
        if torch.is_grad_enabled():  # somebody differentiates the gradient: by torch's own rules, then
            return _backward_of_textbook(tensors, grads)
        raw, d, L, N, G = ctx.small
        zs = [at_least_float32(z).to(raw.dtype if needs_double(z) else at_least_float32(z).dtype) for z in tensors[:n]]
        dAs = grads[:n]
        dR, dL, dG = (_stacked(grads[start : start + n], N) for start in (n, 2 * n, 3 * n))
        with without_autocast(raw):
            if dG is not None:
                through = -(G.mT @ dG @ G.mT)
                dR = through if dR is None else dR + through
            dN = torch.stack([_product(dA, z, N_i) for dA, z, N_i in zip(dAs, zs, N, strict=True)])
            if dR is not None:
                dN.addcmul_(dR, d[:, None])
            inner = -dN @ N.mT if dL is None else L.mT @ dL - dN @ N.mT
            inner = inner.tril_()
            inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
            d_psi2 = N.mT @ (inner + inner.mT) @ N  # 2 dPsi
            d_d = d * d_psi2.diagonal(dim1=-2, dim2=-1)
            if dR is not None:
                d_d = d_d + (N * dR).sum(-2)
            d_raw = softplus_grad(raw, d_d)
            used = [any(grads[place] is not None for place in range(i, 4 * n, n)) for i in range(n)]
            d_zs = [_z_grad(*own) if asked else None for *own, asked in zip(dAs, zs, N, d_psi2, used, strict=True)]
        found = [*d_zs, *(own if asked else None for own, asked in zip(d_raw, used, strict=True))]
        return tuple(None if grad is None else grad.to(t.dtype) for grad, t in zip(found, tensors, strict=True))


def _stacked(grads: Sequence[Tensor | None], like: Tensor) -> Tensor | None:
    """Gradients of the n sides as (n, M, M), 0 where there is none; None where there is none at all."""
    if all(grad is None for grad in grads):
        return None
    return torch.stack([torch.zeros_like(like[0]) if grad is None else grad.to(like.dtype) for grad in grads])


def positive_together(raws: Sequence[Tensor], caps: Sequence[float]) -> list[Tensor]:
    """`positive` of many scales, each with its cap, in one go; [] inside torch.func's transforms."""
    like = at_least_float32(raws[0])
    bounds = _caps(tuple(raw.numel() for raw in raws), tuple(caps), like.dtype, like.device)
    try:
        return list(_PositiveTogether.apply(bounds, *raws))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return []


class _PositiveTogether(torch.autograd.Function):
    """(caps, raw_1, ..., raw_n) -> scale_1, ..., scale_n."""

    @staticmethod
    def forward(ctx: Any, caps: Tensor, *raws: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(caps, *raws)
        return _cut(softplus_value(_flat(raws), caps), raws)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        caps, *raws = ctx.saved_tensors
        found = [torch.zeros_like(raw) if grad is None else grad for raw, grad in zip(raws, grads, strict=True)]
        cut = _cut(softplus_grad(_flat(raws), _flat(found), caps), raws)
        used = zip(cut, raws, grads, strict=True)
        return None, *(None if grad is None else own.to(raw.dtype) for own, raw, grad in used)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([at_least_float32(tensor).reshape(-1) for tensor in tensors])


def _cut(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    parts = flat.split([tensor.numel() for tensor in like])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True))


@functools.lru_cache(maxsize=64)
def _caps(sizes: tuple[int, ...], caps: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The cap of every entry of the joined scales."""
    with torch.inference_mode(False):
        values = [torch.full((size,), cap, dtype=dtype, device=device) for size, cap in zip(sizes, caps, strict=True)]
        return torch.cat(values)


def _product(dA: Tensor | None, z: Tensor, like: Tensor) -> Tensor:
    """dA Z^T (M, M) in the type of `like`."""
    return torch.zeros_like(like) if dA is None else (dA.to(z.dtype) @ z.mT).to(like.dtype)


def _z_grad(dA: Tensor | None, z: Tensor, N: Tensor, d_psi2: Tensor) -> Tensor:
    """N^T dA + 2 dPsi Z."""
    through_psi = d_psi2.to(z.dtype) @ z
    return through_psi if dA is None else through_psi.addmm_(N.to(z.dtype).mT, dA.to(z.dtype))


def _backward_of_textbook(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The same gradient, differentiable, through `factor`."""
    n = len(tensors) // 2
    factors = [factor(z, positive(raw)) for z, raw in zip(tensors[:n], tensors[n:], strict=True)]
    outputs = [getattr(own, name) for name in ("A", "R", "L", "G") for own in factors]
    wanted = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    needed = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    found = torch.autograd.grad(
        [output for output, _ in wanted],
        [tensors[i] for i in needed],
        [grad for _, grad in wanted],
        create_graph=True,
        allow_unused=True,
    )
    by_place = dict(zip(needed, found, strict=True))
    return tuple(by_place.get(i) for i in range(len(tensors)))
