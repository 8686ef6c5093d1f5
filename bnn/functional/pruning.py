"""What pruning an entry of Z changes, and which entries of several tensors are the smallest of all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bnn.functional.inducing import Factors


def output_changes(
    u: Tensor, row: Factors, col: Factors, z_row: Tensor, z_col: Tensor, rms: Tensor
) -> tuple[Tensor, Tensor]:
    """How much of the rms of the mean output y = A_r^T u A_c x every entry of Z_r and of Z_c is, all else held.

    y = B_r Z_c x = Z_r^T B_c x with B_r = A_r^T u L_c^-1 and B_c = L_r^-T u A_c. For uncorrelated x, without entry mj
    of Z_c the output changes by |z_mj| rms(x_j) |B_r[:, m]|, without entry mo of Z_r by |z_mo| rms(B_c[m] x).

    Args:
        u: the whitened mean (M_out, M_in).
        rms: of x, (columns of W,).

    Returns:
        In the shapes of Z_r and Z_c.
    """
    Br = torch.linalg.solve_triangular(col.L.mT, (row.A.mT @ u).mT, upper=True).mT  # (rows of W, M_in)
    Bc = torch.linalg.solve_triangular(row.L.mT, u @ col.A, upper=True)  # (M_out, columns of W)
    size = (row.A.mT @ u @ col.A * rms).norm().clamp(min=torch.finfo(u.dtype).tiny)
    of_row = z_row.abs() * (Bc * rms).norm(dim=1)[:, None]
    of_col = z_col.abs() * rms * Br.norm(dim=0)[:, None]
    return of_row / size, of_col / size


def smallest(scores: Sequence[Tensor], number: int) -> list[Tensor]:
    """True for the `number` smallest entries of all tensors together, in their shapes; of equal ones the first.

    >>> smallest([torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])], 2)
    [tensor([False,  True]), tensor([ True, False])]
    """
    flat = torch.cat([one.flatten() for one in scores])
    chosen = torch.zeros(flat.shape, dtype=torch.bool, device=flat.device)
    if number:
        edge = flat.kthvalue(number).values
        chosen = flat < edge
        chosen[(flat == edge).nonzero()[: number - int(chosen.sum()), 0]] = True
    parts = chosen.split([one.numel() for one in scores])
    return [part.view(one.shape) for part, one in zip(parts, scores, strict=True)]
