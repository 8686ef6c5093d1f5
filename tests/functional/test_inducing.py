"""The factors, the paper's draw and the KL of the conditional, against dense Gaussians."""

from __future__ import annotations

import math

import pytest
import torch
from dense_oracle import (
    ERRORS,
    EXACT,
    SHAPES,
    Case,
    Noise,
    Sampler,
    dense_conditional,
    linear_moments,
    make_case,
    psi,
    vec,
    without,
    worst_error,
    worst_z_score,
)
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bnn.functional.inducing import (
    Factors,
    MatheronNoise,
    conditional_covariance,
    conditional_mean,
    extended_matheron,
    factor,
    matheron_noise,
    rescaling_kl,
    without_projection,
)
from bnn.functional.linalg import FactorisationError, NumericalWarning

# ---- the factors of one side -----------------------------------------------------------------------------------------

SIDES = [(3, 8), (13, 16), (63, 64), (8, 8), (9, 8), (20, 6), (1, 4), (1, 1), (2, 1)]  # (M, d)


def qr_factors(z: Tensor, d: Tensor) -> Factors:
    """In float64, A, R, L without forming Psi: the QR decomposition of [Z^T; D], with a positive diagonal."""
    Q, upper = torch.linalg.qr(torch.cat([z.double().T, torch.diag(d.double())]))
    sign = upper.diagonal().sign()
    Q, L = Q * sign, (upper * sign[:, None]).T
    A, R = Q[: z.shape[1]].T, Q[z.shape[1] :].T
    return Factors(A, R, L, torch.linalg.inv(torch.eye(len(R), dtype=torch.double) + R))


def assert_close(got: Factors, expected: Factors, tolerance: float) -> None:
    for name in Factors._fields:
        torch.testing.assert_close(getattr(got, name).double(), getattr(expected, name), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("M", "d"), SIDES)
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-4])
def test_factor_in_float32_matches_a_float64_qr(M: int, d: int, size: float) -> None:
    z, diagonal = torch.randn(M, d) / M**0.5, size * (0.5 + torch.rand(M))
    got = factor(z, diagonal)
    assert {part.dtype for part in got} == {torch.float32}
    assert_close(got, qr_factors(z, diagonal), 1e-4)


@pytest.mark.parametrize(("M", "d"), [(15, 16), (63, 64), (64, 64)])
def test_factor_in_float32_with_a_nearly_dependent_row(M: int, d: int) -> None:
    """Near M = d a random Z has a singular value of about 1/d: here the smallest is 2e-3, all others 1."""
    row_vectors, col_vectors = (torch.linalg.qr(torch.randn(n, n)).Q for n in (M, d))
    singular = torch.ones(M)
    singular[-1] = 2e-3
    z, diagonal = (row_vectors * singular) @ col_vectors[:M], torch.full((M,), 1e-3)
    assert_close(factor(z, diagonal), qr_factors(z, diagonal), 1e-4)


@pytest.mark.parametrize(("M", "d"), SIDES)
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_factor_identities(M: int, d: int, size: float) -> None:
    z, diagonal = torch.randn(M, d, dtype=torch.double), size * (0.5 + torch.rand(M, dtype=torch.double))
    A, R, L, G = factor(z, diagonal)
    eye = torch.eye(M, dtype=torch.double)
    torch.testing.assert_close(A @ A.T + R @ R.T, eye, atol=1e-8, rtol=0)
    torch.testing.assert_close(L @ L.T, psi(z, diagonal))
    torch.testing.assert_close(L @ A, z, atol=1e-8, rtol=0)
    torch.testing.assert_close(L @ R, torch.diag(diagonal), atol=1e-8, rtol=0)
    torch.testing.assert_close(G @ (eye + R), eye, atol=1e-10, rtol=0)
    assert torch.equal(L, L.tril())
    assert torch.equal(G, G.tril())
    assert torch.linalg.svdvals(G).max() <= 1 / math.tan(math.pi / (4 * M)) + EXACT  # a resolvent of a contraction
    assert torch.linalg.svdvals(A).max() < 1


@pytest.mark.parametrize(("M", "d"), SIDES)
def test_factor_ignores_autocast(M: int, d: int) -> None:
    z, diagonal = torch.randn(M, d), torch.full((M,), 1e-3)
    expected = factor(z, diagonal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = factor(z, diagonal)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("M", "d"), SIDES)
def test_factor_of_half_precision_is_that_of_the_same_numbers_in_float32(M: int, d: int, dtype: torch.dtype) -> None:
    z, diagonal = (torch.randn(M, d) / M**0.5).to(dtype), torch.full((M,), 1e-3, dtype=dtype)
    got = factor(z, diagonal)
    assert {part.dtype for part in got} == {torch.float32}
    assert_close(got, qr_factors(z, diagonal), 1e-4)


@pytest.mark.parametrize(("M", "d"), [(2, 4), (3, 3), (4, 2)])
def test_gradients_of_factor(M: int, d: int) -> None:
    z = torch.randn(M, d, dtype=torch.double, requires_grad=True)
    diagonal = (0.3 + torch.rand(M, dtype=torch.double)).requires_grad_()
    assert torch.autograd.gradcheck(factor, (z, diagonal))


def test_factor_inside_vmap() -> None:
    z, diagonal = torch.randn(4, 3, 5, dtype=torch.double), 0.1 + torch.rand(4, 3, dtype=torch.double)
    got = torch.func.vmap(factor)(z, diagonal)
    for i in range(4):
        assert_close(Factors(*(part[i] for part in got)), factor(z[i], diagonal[i]), EXACT)


def test_ill_conditioned_z_gives_jitter_with_a_warning() -> None:
    z = torch.randn(1, 8).repeat(5, 1)  # M < d, five equal rows: Psi is of rank one but for D
    with pytest.warns(NumericalWarning, match="Psi_r of shape"):
        parts = factor(z.requires_grad_(), torch.full((5,), 1e-6), "Psi_r")
    sum(part.sum() for part in parts).backward()
    assert all(bool(part.isfinite().all()) for part in parts)
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("M", "d"), SIDES)
def test_a_diverged_z_is_a_named_error(M: int, d: int, bad: float) -> None:
    z = torch.randn(M, d)
    z[M // 2, d // 2] = bad
    with pytest.raises(FactorisationError, match=r"Psi_c of this layer of shape .* NaN or infinite"):
        factor(z, torch.full((M,), 1e-3), "Psi_c of this layer")


@pytest.mark.parametrize(("M", "d"), SIDES)
def test_a_z_whose_square_overflows_gives_no_silent_nan(M: int, d: int) -> None:
    z = torch.randn(M, d)
    z[M // 2, d // 2] = 1e30  # its square is inf in float32 (M below d), not in float64
    try:
        parts = factor(z, torch.full((M,), 1e-3))
    except FactorisationError:
        return
    assert all(bool(part.isfinite().all()) for part in parts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_d_is_a_named_error(bad: float) -> None:
    with pytest.raises(FactorisationError, match="Psi of shape"):
        factor(torch.randn(3, 5), torch.tensor([1e-3, bad, 1e-3]))


# ---- a root of I - P ------------------------------------------------------------------------------------------------


def root_error(z: Tensor, diagonal: Tensor, side: Factors) -> float:
    """How far F F^T is from I - P, P = Z^T Psi^-1 Z by QR, for the F of `without_projection`."""
    A, d = qr_factors(z, diagonal).A, z.shape[1]
    F = without_projection(torch.eye(d, dtype=side.A.dtype), side).mT.double()
    return float((F @ F.T - torch.eye(d, dtype=torch.double) + A.T @ A).abs().max())


@pytest.mark.parametrize(("M", "d"), SIDES)
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_what_is_left_of_the_projection(M: int, d: int, size: float) -> None:
    """Standard normal rows get the covariance I - P: exactly in float64, and from float32 and from halves to 1e-4."""
    z, diagonal = torch.randn(M, d, dtype=torch.double), size * (0.5 + torch.rand(M, dtype=torch.double))
    assert root_error(z, diagonal, factor(z, diagonal)) < (EXACT if size == 1 else 1e-8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        z_low, d_low = (z / M**0.5).to(dtype), diagonal.to(dtype)
        assert root_error(z_low, d_low, factor(z_low, d_low)) < 1e-4


@pytest.mark.parametrize(("M", "d"), SIDES)
def test_a_root_by_another_g_is_seen(M: int, d: int) -> None:
    z, diagonal = torch.randn(M, d, dtype=torch.double), 0.5 + torch.rand(M, dtype=torch.double)
    side = factor(z, diagonal)
    others = [torch.eye(M, dtype=torch.double), torch.zeros(M, M, dtype=torch.double), side.R]
    for G in others if 1 in (M, d) else [*others, side.G.mT]:  # for M = 1 or d = 1, F is symmetric
        assert root_error(z, diagonal, side._replace(G=G)) > 1e5 * EXACT


def test_rows_lose_their_projection_one_by_one() -> None:
    z, diagonal = torch.randn(3, 5, dtype=torch.double), 0.5 + torch.rand(3, dtype=torch.double)
    side, E = factor(z, diagonal), torch.randn(4, 2, 6, 5, dtype=torch.double)
    A, _, _, G = qr_factors(z, diagonal)
    F = torch.eye(5, dtype=torch.double) - A.T @ G @ A
    expected = torch.einsum("...i,oi->...o", E, F)
    torch.testing.assert_close(without_projection(E, side), expected, atol=EXACT, rtol=0)
    torch.testing.assert_close(without_projection(E[0, 0, 0], side), expected[0, 0, 0], atol=EXACT, rtol=0)
    several = torch.func.vmap(factor)(z.repeat(2, 1, 1), diagonal.repeat(2, 1))
    batched = torch.func.vmap(without_projection)(E[:2], several)
    torch.testing.assert_close(batched, expected[:2], atol=EXACT, rtol=0)


# ---- the paper's draw ------------------------------------------------------------------------------------------------


def sides(case: Case) -> tuple[Factors, Factors]:
    return factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)


def noise_shapes(case: Case) -> dict[str, tuple[int, int]]:
    (m_out, d_out), (m_in, d_in) = case.z_row.shape, case.z_col.shape
    return {"E1": (d_out, d_in), "E2": (d_out, m_in), "E3": (m_out, d_in), "E4": (m_out, m_in)}


def paper_draw(case: Case) -> Sampler:
    row, col = sides(case)
    return lambda noise: extended_matheron(case.u, row, col, case.lamda, case.sigma, MatheronNoise(**noise))


def paper_terms(case: Case) -> dict[str, Sampler]:
    """The noise terms of the rule one by one; E1 has two."""
    (A_r, R_r, *_), (A_c, R_c, *_) = sides(case)
    scale = case.lamda * case.sigma
    return {
        "Wbar": lambda noise: scale * noise["E1"],
        "A_r E1 A_c^T": lambda noise: -scale * A_r.T @ (A_r @ noise["E1"] @ A_c.T) @ A_c,
        "A_r E2 R_c^T": lambda noise: -scale * A_r.T @ (A_r @ noise["E2"] @ R_c.T) @ A_c,
        "R_r E3 A_c^T": lambda noise: -scale * A_r.T @ (R_r @ noise["E3"] @ A_c.T) @ A_c,
        "R_r E4 R_c^T": lambda noise: -scale * A_r.T @ (R_r @ noise["E4"] @ R_c.T) @ A_c,
    }


TERMS = ["Wbar", "A_r E1 A_c^T", "A_r E2 R_c^T", "R_r E3 A_c^T", "R_r E4 R_c^T"]
BLOCKS = ["E1", "E2", "E3", "E4"]


@pytest.mark.parametrize("shape", SHAPES)
def test_conditional_moments_are_the_dense_ones(shape: tuple[int, int, int, int]) -> None:
    case = make_case(*shape)
    row, col = sides(case)
    mean = vec(conditional_mean(case.u, row, col, case.sigma))
    covariance = conditional_covariance(row, col, case.lamda, case.sigma)
    assert worst_error((mean, covariance), dense_conditional(case)) < EXACT


@pytest.mark.parametrize("shape", SHAPES)
def test_paper_draw_is_exact(shape: tuple[int, int, int, int]) -> None:
    case = make_case(*shape)
    assert worst_error(linear_moments(paper_draw(case), noise_shapes(case)), dense_conditional(case)) < EXACT


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exactness_fails_without_a_block_of_noise(shape: tuple[int, int, int, int], name: str) -> None:
    case = make_case(*shape)
    draw = paper_draw(case)
    moments = linear_moments(lambda noise: draw(without(noise, name)), noise_shapes(case))
    assert worst_error(moments, dense_conditional(case)) > 1e5 * EXACT


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exactness_fails_without_a_term(shape: tuple[int, int, int, int], name: str) -> None:
    case = make_case(*shape)
    draw, terms = paper_draw(case), paper_terms(case)
    moments = linear_moments(lambda noise: draw(noise) - terms[name](noise), noise_shapes(case))
    assert worst_error(moments, dense_conditional(case)) > 1e5 * EXACT


def test_the_terms_are_all_there_is() -> None:
    case = make_case(4, 5, 2, 3)
    noise = {name: torch.randn(shape, dtype=torch.double) for name, shape in noise_shapes(case).items()}
    whole = sum(term(noise) for term in paper_terms(case).values()) + paper_draw(case)(
        {name: torch.zeros_like(block) for name, block in noise.items()}
    )
    torch.testing.assert_close(paper_draw(case)(noise), whole)


DRAWS = 200_000


def monte_carlo(case: Case, drop: str | None = None) -> float:
    """The worst z-score of 200,000 draws through `matheron_noise`; `drop` leaves out a term of the rule."""
    noise: Noise = matheron_noise(*sides(case), DRAWS)._asdict()
    W = paper_draw(case)(noise)
    if drop is not None:
        W = W - paper_terms(case)[drop](noise)
    return worst_z_score(vec(W), dense_conditional(case))


@pytest.mark.parametrize("shape", [(3, 4, 2, 3), (2, 3, 2, 3), (2, 2, 3, 4)])
def test_paper_draw_by_monte_carlo(shape: tuple[int, int, int, int]) -> None:
    assert monte_carlo(make_case(*shape)) < ERRORS


@pytest.mark.parametrize("name", TERMS)
def test_monte_carlo_fails_without_a_term(name: str) -> None:
    assert monte_carlo(make_case(3, 4, 2, 3), drop=name) > 2 * ERRORS


def test_noise_has_the_stated_shapes_and_repeats_with_its_generator() -> None:
    case = make_case(4, 5, 2, 3)
    noise, again = (matheron_noise(*sides(case), 7, 2, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    for name, shape in noise_shapes(case).items():
        assert getattr(noise, name).shape == (7, 2, *shape)
        assert torch.equal(getattr(noise, name), getattr(again, name))


@pytest.mark.parametrize("shape", SHAPES)
def test_marginalisation_gives_the_prior_back(shape: tuple[int, int, int, int]) -> None:
    """With u ~ N(0, I) and lamda = 1, W ~ N(0, sigma^2 I) exactly."""
    case = make_case(*shape)
    row, col = sides(case)

    def draw(noise: Noise) -> Tensor:
        blocks = MatheronNoise(*(noise[name] for name in BLOCKS))
        return extended_matheron(noise["u"], row, col, 1.0, case.sigma, blocks)

    mean, covariance = linear_moments(draw, noise_shapes(case) | {"u": (shape[2], shape[3])})
    expected = case.sigma**2 * torch.eye(len(mean), dtype=torch.double)
    assert worst_error((mean, covariance), (torch.zeros_like(mean), expected)) < EXACT


def test_marginalisation_by_monte_carlo() -> None:
    case = make_case(3, 4, 2, 3)
    row, col = sides(case)
    u = torch.randn(DRAWS, 2, 3, dtype=torch.double)
    W = extended_matheron(u, row, col, 1.0, case.sigma, matheron_noise(row, col, DRAWS))
    prior = torch.zeros(12, dtype=torch.double), case.sigma**2 * torch.eye(12, dtype=torch.double)
    assert worst_z_score(vec(W), prior) < ERRORS


# ---- the KL of the conditional ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lamda", [1e-3, 0.1, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("shape", [(4, 5, 2, 3), (3, 2, 5, 4)])
def test_rescaling_kl_is_that_of_dense_gaussians(shape: tuple[int, int, int, int], lamda: float) -> None:
    mean, covariance = dense_conditional(make_case(*shape)._replace(lamda=1.0))
    expected = kl_divergence(MultivariateNormal(mean, lamda**2 * covariance), MultivariateNormal(mean, covariance))
    got = shape[0] * shape[1] * rescaling_kl(torch.tensor(lamda, dtype=torch.double))
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


def test_rescaling_kl_by_monte_carlo() -> None:
    """E[log q(W|U) - log p(W|U)] over 200,000 draws of the paper's rule."""
    case = make_case(3, 4, 2, 3)
    mean, covariance = dense_conditional(case)
    q, p = MultivariateNormal(mean, covariance), MultivariateNormal(mean, covariance / case.lamda**2)
    W = vec(paper_draw(case)(matheron_noise(*sides(case), DRAWS)._asdict()))
    ratio = q.log_prob(W) - p.log_prob(W)
    expected = 12 * rescaling_kl(torch.tensor(case.lamda, dtype=torch.double))
    assert abs(ratio.mean() - expected) < ERRORS * ratio.std() / DRAWS**0.5


def test_gradient_of_rescaling_kl() -> None:
    lamda = torch.tensor([1e-2, 0.5, 1.0, 3.0], dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(rescaling_kl, lamda)
