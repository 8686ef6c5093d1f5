"""Low-rank weights that lose least of a layer's outputs, from second moments of its inputs and outputs.

A kernel is the matrix W of `kernel="paper"`, rows o and columns (c, taps), or of `kernel="split"`, rows (o, b) and
columns (c, other taps) with b the tap along the last dimension. Both are one problem: x~_b are the inputs that tap b
sees (the paper's matrix has one tap that sees all), and W = C A of rank k minimises, summed over the groups,

    E |y - sum_b C_b A x~_b|^2 + ridge |W - W0|^2
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn.functional.kernels import from_matrix, settled_kernel, to_matrix
from bnn.functional.projection import truncated_svd

RIDGE = 1e-5  # of the mean diagonal of S: what inputs never show stays near the weights at hand
LARGER = 1000  # times the ridge: beyond all rounding errors
TINY = 1e-9  # the same for k x k systems, which the ridge has made definite up to rounding
ROUNDS = 10  # of alternation; the error hardly falls after them
STEPS = 25  # of conjugate gradients in a round


class Moments(NamedTuple):
    """Second moments of a layer's rows x (c_in / groups * taps, then a bias's 1) and outputs y, in float64."""

    S: Tensor  # (groups, P, P): E[x x^T]
    K: Tensor  # (groups, c_out / groups, P): E[y x^T]
    energy: float  # E |y|^2, summed over all outputs


class Problem(NamedTuple):
    """`Moments` by taps, with the ridge. P = b n: a tap sees n entries of x, among them 1 / sqrt(b) for a bias."""

    S: Tensor  # (groups, b n, b n)
    K: Tensor  # (groups, c_out / groups, b n)
    W: Tensor  # (groups, c_out / groups, b n): the minimiser K S^-1 without a limit on the rank
    root: Tensor  # (n, n): the Cholesky factor of the mean of S_bb over groups and taps
    taps: int  # b


class LowRank(NamedTuple):
    """W = C A as a matrix, and how much of the outputs' energy it keeps."""

    W: Tensor  # (c_out b, n), rows (o, b), a bias as the last column
    kept: float  # 1 - E |y - y^|^2 / E |y|^2; below 0 where it is worse than no weights at all


def own_moments(weight: Tensor, bias: Tensor | None, S: Tensor) -> Moments:
    """The moments of a layer's own outputs y = W x on rows with the moments S (groups, P, P)."""
    W = _by_group(weight, bias, len(S))
    K = W @ S
    return Moments(S, K, float((K * W).sum()))


def centred(moments: Moments, x: Tensor, y: Tensor) -> Moments:
    """The moments around the means E[x] (groups, P) and E[y] (groups, c_out / groups), for a fit with intercepts."""
    S = moments.S - x[:, :, None] * x[:, None]
    return Moments(S, moments.K - y[:, :, None] * x[:, None], moments.energy - float(y.square().sum()))


def low_rank(
    weight: Tensor,
    bias: Tensor | None,
    moments: Moments,
    k: int,
    kernel: str = "paper",
    rounds: int = ROUNDS,
    ridge: float = RIDGE,
) -> LowRank:
    """Weights of rank k whose outputs are closest to y.

    One group and one tap: the closed form, truncation of W S^1/2. Else that, with S the mean over groups and taps, is
    the start, and C and A are fitted in turn, C exactly and A by conjugate gradients; the error never rises.

    Args:
        weight, bias: (c_out, c_in / groups, *kernel) and (c_out,): the weights at hand, W0.
        kernel: which matrix has rank k, "paper" or "split"; "auto" is settled.
        rounds: of alternation; 0: only the truncation.
        ridge: of the mean diagonal of S; the larger, the nearer to truncation of the weights at hand.
    """
    problem = _problem(weight, bias, moments, kernel, ridge=ridge)
    C, _, A = _leading(problem, min(k, *_shape(problem)))
    if rounds and (problem.taps > 1 or len(problem.S) > 1):
        C = _fit_rows(problem, A)
        for _ in range(rounds):
            A = _fit_columns(problem, C, A)
            C = _fit_rows(problem, A)
    W = (C @ A).transpose(1, 2).flatten(0, 2)  # rows (groups, o, b)
    return LowRank(W, energy_kept(*from_matrix(W, weight.shape, bias is not None, kernel), moments))


def energy_kept(weight: Tensor, bias: Tensor | None, moments: Moments) -> float:
    """1 - E |y - W x|^2 / E |y|^2; below 0 where W is worse than no weights at all, 1 where there is no energy."""
    W = _by_group(weight, bias, len(moments.S)).to(moments.S)
    lost = moments.energy + float(((W @ moments.S - 2 * moments.K) * W).sum())
    return 1 - max(lost, 0.0) / moments.energy if moments.energy > 0 else 1.0


def energy_by_rank(weight: Tensor, bias: Tensor | None, S: Tensor | None = None, kernel: str = "paper") -> Tensor:
    """How much of the energy E |W x|^2 the first, second, ... rank adds, (min(d_out, d_in),); all ranks together: all.

    For the paper's matrix and one group these are the squared singular values of W S^1/2. Else A consists of leading
    singular vectors and C is fitted to it, so that the sum up to k is what a start of rank k keeps before alternation.

    Args:
        S: moments (groups, P, P) of the layer's rows, a bias's 1 last; None: not known, which gives the squared
            singular values of the matrix itself.
        kernel: which matrix, "paper" or "split"; "auto" is settled.
    """
    weight, bias = weight.double(), _double(bias)
    if S is None:
        return torch.linalg.svdvals(to_matrix(weight, bias, kernel)).square()
    problem = _problem(weight, bias, own_moments(weight, bias, S.double()), kernel, own=True)
    _, singular, A = _leading(problem, min(_shape(problem)))
    groups, b, k = len(problem.S), problem.taps, len(A)
    if groups == b == 1:
        return singular.square()
    # Columns of R L^-T are gains: with (k, b) as the order, those of the first k ranks need no later ones.
    N, R = _normal(problem, A)
    N = N.reshape(groups, b, k, b, k).permute(0, 2, 1, 4, 3).reshape(groups, k * b, k * b)
    R = R.reshape(groups, -1, b, k).mT.reshape(groups, -1, k * b)
    gains = torch.linalg.solve_triangular(_chol(N), R.mT, upper=False)  # (groups, k b, o)
    return gains.square().sum((0, 2)).unflatten(0, (k, b)).sum(1)


# ---- the two fits ----------------------------------------------------------------------------------------------------


def _leading(problem: Problem, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best W of rank k for inputs with the mean moments S of groups and taps: truncation of W S^1/2.

    Returns C (groups, b, o, k), the singular values, and A (k, n).
    """
    W = problem.W.unflatten(-1, (problem.taps, -1))  # (groups, o, b, n)
    U, singular, V = truncated_svd(W.flatten(0, 2) @ problem.root, k)
    A = torch.linalg.solve_triangular(problem.root, V, upper=False, left=False)
    return (U * singular).reshape(*W.shape[:3], k).transpose(1, 2), singular, A


def _fit_rows(problem: Problem, A: Tensor) -> Tensor:
    """C (groups, b, o, k) given A: [C_1 .. C_b] = [K_1 A^T .. K_b A^T] [A S_bb' A^T]^-1."""
    N, R = _normal(problem, A)
    C = torch.cholesky_solve(R.mT, _chol(N)).mT  # (groups, o, b k)
    return C.unflatten(-1, (problem.taps, -1)).transpose(1, 2)


def _fit_columns(problem: Problem, C: Tensor, A: Tensor, steps: int = STEPS) -> Tensor:
    """A (k, n) given C, from where it is: sum_bb' C_b^T C_b' A S_b'b = sum_b C_b^T K_b, summed over groups, too."""
    groups, b, _, k = C.shape
    n = A.shape[1]
    K = problem.K.unflatten(-1, (b, n)).transpose(1, 2)  # (groups, b, o, n)
    right = (C.mT @ K).sum((0, 1))
    together = C.transpose(1, 2).flatten(2)  # (groups, o, b k)
    H = (together.mT @ together).reshape(groups, b, k, b * k)
    S = problem.S.reshape(groups, b, n, b * n)

    def left(A: Tensor) -> Tensor:
        AS = (A @ S).reshape(groups, b, k, b, n).permute(0, 3, 1, 2, 4)  # (groups, b, c, k, n): A S_cb
        product: Tensor = (H @ AS.flatten(2, 3)).sum((0, 1))
        return product

    rows = _chol((C.mT @ C).sum((0, 1)))

    def precondition(r: Tensor) -> Tensor:
        return torch.cholesky_solve(torch.cholesky_solve(r, rows).mT, problem.root).mT

    r = right - left(A)
    z = precondition(r)
    p, rz = z, (r * z).sum()
    enough = 1e-20 * (right * precondition(right)).sum()
    for _ in range(steps):
        if not rz > enough:
            break
        Hp = left(p)
        step = rz / (p * Hp).sum()
        A, r = A + step * p, r - step * Hp
        z, before = precondition(r), rz
        rz = (r * z).sum()
        p = z + rz / before * p
    return A


def _normal(problem: Problem, A: Tensor) -> tuple[Tensor, Tensor]:
    """A S_bb' A^T (groups, b k, b k) and K_b A^T (groups, o, b k)."""
    b, n = problem.taps, A.shape[1]
    R = (problem.K.unflatten(-1, (b, n)) @ A.mT).flatten(2)
    half = (problem.S.unflatten(-1, (b, n)) @ A.mT).flatten(2)  # (groups, b n, b k)
    return (A @ half.unflatten(1, (b, n))).flatten(1, 2), R


# ---- arrangements ----------------------------------------------------------------------------------------------------


def _problem(
    weight: Tensor, bias: Tensor | None, moments: Moments, kernel: str, own: bool = False, ridge: float = RIDGE
) -> Problem:
    """The moments by taps, with a ridge that pulls towards the weights at hand; `own`: y are their outputs.

    The ridge grows where S, whose rank is that of the inputs, is not definite: sums in float32 have rounding errors.
    """
    most = ridge * LARGER
    while True:
        try:
            return _with_ridge(weight, bias, moments, kernel, own, ridge)
        except torch.linalg.LinAlgError:
            ridge *= 10
            if ridge > most:
                raise


def _with_ridge(weight: Tensor, bias: Tensor | None, moments: Moments, kernel: str, own: bool, ridge: float) -> Problem:
    S, K = moments.S, moments.K
    W = _by_group(weight, bias, len(S)).to(K)
    added = ridge * S.diagonal(dim1=-2, dim2=-1).mean().clamp(min=torch.finfo(S.dtype).tiny)
    S, K = S + added * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device), K + added * W
    W = W if own else torch.cholesky_solve(K.mT, torch.linalg.cholesky(S)).mT
    taps = weight.shape[-1] if settled_kernel(kernel, weight.shape) == "split" else 1
    if taps > 1:
        index, scale = (part.to(S.device) for part in _entries(weight, bias is not None, taps))
        S, K, W = S[:, index][..., index] * torch.outer(scale, scale), K[..., index] * scale, W[..., index] * scale
    blocks = S.unflatten(-1, (taps, -1)).unflatten(1, (taps, -1))  # (groups, b, n, b, n)
    return Problem(S, K, W, _chol(blocks.diagonal(dim1=1, dim2=3).mean((0, -1))), taps)


def _entries(weight: Tensor, bias: bool, taps: int) -> tuple[Tensor, Tensor]:
    """Which entries of x the x~_1 .. x~_b consist of, (b n,), and their factors: 1 / sqrt(b) for a bias, else 1."""
    P = weight[0].numel()
    index = torch.arange(P).reshape(-1, taps).mT  # (b, n)
    scale = torch.ones(index.shape, dtype=torch.double)
    if bias:
        index = torch.cat([index, torch.full((taps, 1), P)], dim=1)
        scale = torch.cat([scale, scale.new_full((taps, 1), taps**-0.5)], dim=1)
    return index.flatten(), scale.flatten()


def _by_group(weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Weights (groups, c_out / groups, P), a bias as the last column."""
    W = weight.flatten(1)
    W = W if bias is None else torch.cat([W, bias[:, None]], dim=1)
    return W.unflatten(0, (groups, -1))


def _shape(problem: Problem) -> tuple[int, int]:
    """(d_out, d_in) of the matrix."""
    groups, o, entries = problem.K.shape
    return groups * o * problem.taps, entries // problem.taps


def _chol(matrix: Tensor, ridge: float = TINY) -> Tensor:
    """The Cholesky factor of a matrix that is definite up to rounding, after adding `ridge` times its mean diagonal."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp(min=torch.finfo(matrix.dtype).tiny)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.cholesky(matrix + ridge * scale * eye)


def _double(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.double()
