"""The pure functions behind Laplace's approximation, against dense linear algebra."""

from __future__ import annotations

import math

import pytest
import torch

from bnn.functional import laplace
from bnn.functional.inducing import factor

DOUBLE = torch.double


def side(m: int, d: int, size: float = 1e-3):
    z = torch.nn.functional.normalize(torch.randn(m, d, dtype=DOUBLE), dim=1)
    return factor(z, torch.full((m,), size, dtype=DOUBLE))


def orthonormal(n: int, m: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(n, m, dtype=DOUBLE)).Q


@pytest.mark.parametrize(("m", "d", "size"), [(5, 9, 1e-3), (5, 9, 0.5), (9, 9, 1e-6), (12, 9, 1e-3)])
def test_z_takes_up_a_rotation(m: int, d: int, size: float) -> None:
    before, Q = side(m, d, size), orthonormal(m, m)
    z, D = laplace.rotated_side(before, Q)
    after = factor(z, D)
    assert torch.allclose(after.A, Q.mT @ before.A, atol=1e-12)
    assert torch.allclose(after.A.mT @ after.A, before.A.mT @ before.A, atol=1e-12)
    assert torch.allclose(torch.linalg.vector_norm(z, dim=1), torch.ones(m, dtype=DOUBLE))


def test_z_takes_up_a_choice_of_directions() -> None:
    before, Q = side(8, 8, 1e-6), orthonormal(8, 3)
    after = factor(*laplace.rotated_side(before, Q))
    assert torch.allclose(after.A, Q.mT @ before.A, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 4])
def test_curvature_is_the_diagonal_of_the_dense_matrix_in_its_basis(rows: int) -> None:
    g, t = torch.randn(2, 30, rows, 3, dtype=DOUBLE), torch.randn(30, rows, 5, dtype=DOUBLE)
    G = torch.einsum("snra,nrb->snab", g, t).flatten(0, 1).mT.flatten(1)  # columns stacked
    H = G.mT @ G
    basis = laplace.Basis(orthonormal(3, 3), orthonormal(5, 5))
    Q = torch.kron(basis.into, basis.out)
    found = laplace.curvature_in(basis, g, t)
    assert torch.allclose(found.mT.flatten(), (Q.mT @ H @ Q).diagonal())


@pytest.mark.parametrize("size", [1e6, 10.0, 1e-4, 1e-6])
def test_precision_maximises_the_evidence(size: float) -> None:
    """Also where the data determine next to nothing: a fixed point runs to and fro there."""
    curvature, mean = size * torch.rand(6, 4, dtype=DOUBLE), torch.randn(6, 4, dtype=DOUBLE)
    tau = laplace.fitted_precision(curvature, mean)
    around = [laplace.log_evidence(curvature, mean, tau * factor) for factor in (0.99, 1.0, 1.01)]
    assert max(around) == around[1]


@pytest.mark.parametrize(("curvature", "mean"), [(0.0, 1.0), (1.0, 0.0)])
def test_precision_without_evidence_is_that_of_the_prior(curvature: float, mean: float) -> None:
    assert laplace.fitted_precision(torch.full((2, 2), curvature), torch.full((2, 2), mean)) == 1.0


def test_precision_stays_within_bounds() -> None:
    tiny = laplace.fitted_precision(torch.ones(2, 2), torch.full((2, 2), 1e-30))
    assert math.isclose(tiny, laplace.MOST, rel_tol=1e-6)


def test_noise_is_that_of_unbiased_regression() -> None:
    """With a flat prior s^2 = RSS / (n - number of weights)."""
    curvature, mean = torch.full((1, 4), 1e6, dtype=DOUBLE), torch.ones(1, 4, dtype=DOUBLE)
    noise = laplace.fitted_noise([curvature], [mean], squares=24.0, values=100, given=1e-9)
    assert math.isclose(noise.sd**2, 24.0 / 96, rel_tol=1e-6)


def test_noise_and_precisions_maximise_the_evidence_together() -> None:
    curvatures = [200 * torch.rand(2, n, dtype=DOUBLE) for n in (5, 3)]
    means = [torch.randn(2, n, dtype=DOUBLE) for n in (5, 3)]

    def evidence(sd: float, taus: list[float]) -> float:
        parts = zip(curvatures, means, taus, strict=True)
        fit = -24.0 / (2 * sd**2) - 100 * math.log(sd)
        return fit + sum(laplace.log_evidence(one / sd**2, mean, tau) for one, mean, tau in parts)

    sd, (one, other) = laplace.fitted_noise(curvatures, means, squares=24.0, values=100)
    best = evidence(sd, [one, other])
    for near in (0.98, 1.02):
        assert max(evidence(near * sd, [one, other]), evidence(sd, [near * one, other])) < best
        assert evidence(sd, [one, near * other]) < best


def test_kept_directions_hold_the_mean_and_most_of_the_rest() -> None:
    mean = torch.randn(2, 6, dtype=DOUBLE)
    inputs = torch.randn(100, 6, dtype=DOUBLE) * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], dtype=DOUBLE)
    S = inputs.mT @ inputs
    kept = laplace.kept_directions(mean, S, 4)
    assert torch.allclose(kept.V.mT @ kept.V, torch.eye(4, dtype=DOUBLE), atol=1e-12)
    assert torch.allclose(mean @ kept.V @ kept.V.mT, mean)
    assert math.isclose(float(kept.left_out.sum()), float(S.trace() - (kept.V.mT @ S @ kept.V).trace()), rel_tol=1e-9)
    others = [laplace.kept_directions(mean, S, m).left_out.sum() for m in (2, 3, 4, 5)]
    assert others == sorted(others, reverse=True)


def test_too_few_directions_name_the_least_possible() -> None:
    with pytest.raises(ValueError, match="rank 2, the least possible"):
        laplace.kept_directions(torch.randn(2, 6, dtype=DOUBLE), torch.eye(6, dtype=DOUBLE), 1)
