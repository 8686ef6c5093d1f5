"""Inducing factors from weights at hand, against a truncated SVD."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from bnn.functional import projection
from bnn.functional.inducing import conditional_mean, factor
from bnn.functional.projection import Projection, krylov_svd, project, random_start, truncated_svd

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


# ---- large matrices --------------------------------------------------------------------------------------------------

N_LARGE, M_LARGE, K = 1000, 1100, 12


def with_spectrum(S: Tensor) -> Tensor:
    """A matrix (1000, 1100) with these singular values."""
    B, Q = (torch.linalg.qr(torch.randn(n, len(S), dtype=torch.double)).Q for n in (N_LARGE, M_LARGE))
    return (B * S) @ Q.T


SPECTRA = {
    "flat": lambda: torch.randn(N_LARGE, M_LARGE, dtype=torch.double),
    "decaying": lambda: with_spectrum(torch.arange(1, N_LARGE + 1).double() ** -0.7),
    "steep": lambda: with_spectrum(0.5 ** torch.arange(60).double()),
    "one far above the rest": lambda: torch.randn(N_LARGE, M_LARGE, dtype=torch.double) + 3,
    "low rank": lambda: with_spectrum(torch.linspace(2, 1, 5).double()),
    "zero": lambda: torch.zeros(N_LARGE, M_LARGE, dtype=torch.double),
}


@pytest.mark.parametrize(("turned", "dtype"), [(False, torch.float32), (True, torch.double)])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_krylov_svd_is_the_truncated_one(spectrum: str, turned: bool, dtype: torch.dtype) -> None:
    """Orthonormal vectors, the singular values to 1e-3, and an approximation that loses 1e-3 of the energy it could."""
    W = (SPECTRA[spectrum]().T if turned else SPECTRA[spectrum]()).to(dtype)
    found = krylov_svd(W, K)
    assert found is not None
    B, S, Q = (part.double() for part in found)
    exact, size = torch.linalg.svdvals(W.double())[:K], W.double().square().sum()
    torch.testing.assert_close(S, exact, rtol=1e-3, atol=1e-5 * float(exact[0]) + 1e-12)
    best = size - exact.square().sum()
    assert (W.double() - (B * S) @ Q).square().sum() - best <= 1e-3 * exact.square().sum() + 1e-12
    for vectors in (B.T, Q):
        torch.testing.assert_close(vectors @ vectors.T, torch.eye(K, dtype=torch.double), atol=1e-4, rtol=0)


def test_a_krylov_svd_that_did_not_converge_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    W = SPECTRA["flat"]()
    assert krylov_svd(W, K, tolerance=1e-30) is None
    monkeypatch.setattr(projection, "LARGE", 100)
    monkeypatch.setattr(projection, "krylov_svd", lambda W, k: None)
    torch.testing.assert_close(truncated_svd(W, K)[1], torch.linalg.svdvals(W)[:K])


def test_large_weights_start_alike_every_time_and_use_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "LARGE", 100)
    W = SPECTRA["flat"]().float()
    before = torch.random.get_rng_state()
    first, second = truncated_svd(W, K), truncated_svd(W, K)
    assert all(map(torch.equal, first, second))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_large_weights_are_not_decomposed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of (2048, 2048) no factorisation sees more than a third of the columns; it took cubic time."""
    sizes = []
    for name in ("eigh", "svd", "qr"):
        plain = getattr(torch.linalg, name)
        monkeypatch.setattr(torch.linalg, name, lambda A, plain=plain, **k: (sizes.append(A.shape), plain(A, **k))[1])
    project(torch.randn(2048, 2048), 16, 16, 1.0, torch.full((16,), 1e-3), torch.full((16,), 1e-3))
    assert sizes
    assert max(min(shape) for shape in sizes) < 2048 / 3
