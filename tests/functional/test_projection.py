"""Inducing factors from weights at hand, against a truncated SVD."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from bnn.functional.inducing import conditional_mean, factor
from bnn.functional.projection import Projection, project, random_start

D_OUT, D_IN = 6, 9  # the last column is the bias
# (M_out, M_in): below d on both sides, mixed, at d, above d
SIZES = [(2, 3), (3, 2), (1, 1), (5, 8), (6, 9), (6, 3), (4, 9), (8, 4), (3, 12), (9, 14)]


def truncated(W: Tensor, k: int) -> Tensor:
    """The best approximation of rank k, by NumPy."""
    B, S, Q = np.linalg.svd(W.double().numpy(), full_matrices=False)
    return torch.from_numpy((B[:, :k] * S[:k]) @ Q[:k])


def reconstruction(W: Tensor, m_out: int, m_in: int, sigma: float, size: float = 1e-3) -> tuple[Projection, Tensor]:
    d_row, d_col = torch.full((m_out,), size, dtype=W.dtype), torch.full((m_in,), size, dtype=W.dtype)
    start = project(W, m_out, m_in, sigma, d_row, d_col)
    return start, conditional_mean(start.u, factor(start.z_row, d_row), factor(start.z_col, d_col), sigma)


@pytest.mark.parametrize(("m_out", "m_in"), SIZES)
def test_projection_is_the_truncated_svd(m_out: int, m_in: int) -> None:
    for sigma, size in itertools.product((1.0, 0.05), (1e-4, 1e-3, 0.3)):
        W = torch.randn(D_OUT, D_IN, dtype=torch.double)
        W[:, -1] *= 3  # a bias of another scale
        start, mean = reconstruction(W, m_out, m_in, sigma, size)
        assert [tuple(part.shape) for part in start] == [(m_out, D_OUT), (m_in, D_IN), (m_out, m_in)]
        torch.testing.assert_close(mean, truncated(W, min(m_out, m_in)), atol=1e-7, rtol=0)


@pytest.mark.parametrize(("m_out", "m_in"), SIZES)
def test_projection_in_float32(m_out: int, m_in: int) -> None:
    W = torch.randn(D_OUT, D_IN)
    start, mean = reconstruction(W, m_out, m_in, 1.0)
    assert {part.dtype for part in start} == {torch.float32}
    torch.testing.assert_close(mean.double(), truncated(W, min(m_out, m_in)), atol=2e-4, rtol=0)


@pytest.mark.parametrize(("m_out", "m_in"), [(2, 2), (2, 9), (5, 3), (9, 14)])
def test_projection_is_exact_once_m_reaches_the_rank(m_out: int, m_in: int) -> None:
    W = torch.randn(D_OUT, 2, dtype=torch.double) @ torch.randn(2, D_IN, dtype=torch.double)
    torch.testing.assert_close(reconstruction(W, m_out, m_in, 1.0)[1], W, atol=1e-7, rtol=0)


def test_projection_of_zero_weights_is_zero() -> None:
    start, mean = reconstruction(torch.zeros(D_OUT, D_IN), 4, 4, 1.0)
    assert all(bool(part.isfinite().all()) for part in start)
    assert mean.abs().max() == 0


@pytest.mark.parametrize(("m_out", "m_in"), SIZES)
def test_leading_rows_of_z_are_singular_vectors_of_norm_one(m_out: int, m_in: int) -> None:
    W = torch.randn(D_OUT, D_IN, dtype=torch.double)
    start, _ = reconstruction(W, m_out, m_in, 1.0)
    k = min(m_out, m_in, D_OUT, D_IN)
    eye = torch.eye(k, dtype=torch.double)
    for z in (start.z_row[:k], start.z_col[:k]):
        torch.testing.assert_close(z @ z.T, eye)
    S = torch.linalg.svdvals(W)[:k]
    torch.testing.assert_close(start.z_row[:k] @ W @ start.z_col[:k].T, torch.diag(S), atol=1e-10, rtol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    W = torch.randn(4, 5)
    W[2, 3] = bad
    with pytest.raises(ValueError, match=r"\(4, 5\) as a matrix, hold NaN or inf"):
        project(W, 2, 2, 1.0, torch.full((2,), 1e-3), torch.full((2,), 1e-3))


def test_random_start_has_the_scales_of_the_paper() -> None:
    """Standard deviations within 5 standard errors: entries of Z M^-1/2 of the own side, of u 1."""
    start = random_start(300, 200, 16, 64, like=torch.zeros(1, dtype=torch.double))
    assert [tuple(part.shape) for part in start] == [(16, 300), (64, 200), (16, 64)]
    for part, sd in zip(start, (16**-0.5, 64**-0.5, 1.0), strict=True):
        n = part.numel()
        assert abs(part.std() / sd - 1) < 5 / (2 * n) ** 0.5
        assert abs(part.mean()) < 5 * sd / n**0.5


def test_spare_rows_of_a_projection_start_as_in_the_paper() -> None:
    start, _ = reconstruction(torch.randn(400, 3), 20, 16, 1.0)  # rank 3: 17 spare rows of Z_r
    spare = start.z_row[3:]
    assert abs(spare.std() / 20**-0.5 - 1) < 5 / (2 * spare.numel()) ** 0.5
