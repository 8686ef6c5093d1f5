"""The two-stage draw: the same distribution as the paper's, against dense Gaussians."""

from __future__ import annotations

from collections.abc import Callable

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
    vec,
    without,
    worst_error,
    worst_z_score,
)
from torch import Tensor

from bnn.functional.draws import (
    column_noise,
    dense_noise,
    draw_columns,
    draw_dense,
    draw_weights,
    mean_rows,
    mean_rows_without_columns,
)
from bnn.functional.inducing import Factors, conditional_mean, factor


def sides(case: Case) -> tuple[Factors, Factors]:
    return factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)


def noise_shapes(case: Case) -> dict[str, tuple[int, int]]:
    d_out, (m_in, d_in) = case.z_row.shape[1], case.z_col.shape
    return {"E1": (d_out, d_in), "E2": (d_out, m_in)}


def two_stages(case: Case, given: tuple[Factors, Factors] | None = None) -> Sampler:
    """W as a function of the noise of both stages, by other factors if given; the noise may bring its own u."""
    row, col = sides(case) if given is None else given

    def draw(noise: Noise) -> Tensor:
        u, lamda, sigma = noise.get("u", case.u), case.lamda, case.sigma
        C = draw_columns(u, row, lamda, sigma, noise["E2"])
        return draw_dense(C, col, lamda, sigma, noise["E1"])

    return draw


def terms_of(case: Case) -> dict[str, Sampler]:
    """The noise terms of both stages one by one, two each."""
    (A_r, R_r, *_), (A_c, R_c, *_) = sides(case)
    G_r, G_c = (torch.linalg.inv(torch.eye(len(R), dtype=torch.double) + R) for R in (R_r, R_c))
    scale = case.lamda * case.sigma
    return {
        "E1": lambda noise: scale * noise["E1"],
        "E1 A_c^T G_c^T": lambda noise: -scale * noise["E1"] @ A_c.T @ G_c.T @ A_c,
        "E2": lambda noise: scale * noise["E2"] @ A_c,
        "G_r A_r E2": lambda noise: -scale * A_r.T @ G_r @ A_r @ noise["E2"] @ A_c,
    }


TERMS = ["E1", "E1 A_c^T G_c^T", "E2", "G_r A_r E2"]
BLOCKS = ["E1", "E2"]
WRONG: dict[str, Callable[[Factors], Tensor]] = {
    "identity": lambda side: torch.eye(len(side.G), dtype=torch.double),
    "transpose": lambda side: side.G.mT,
    "inverse": lambda side: torch.linalg.inv(side.G),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_two_stage_draw_is_exact(shape: tuple[int, int, int, int]) -> None:
    case = make_case(*shape)
    assert worst_error(linear_moments(two_stages(case), noise_shapes(case)), dense_conditional(case)) < EXACT


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exactness_fails_without_a_block_of_noise(shape: tuple[int, int, int, int], name: str) -> None:
    case = make_case(*shape)
    draw = two_stages(case)
    moments = linear_moments(lambda noise: draw(without(noise, name)), noise_shapes(case))
    assert worst_error(moments, dense_conditional(case)) > 1e5 * EXACT


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_exactness_fails_without_a_term(shape: tuple[int, int, int, int], name: str) -> None:
    case = make_case(*shape)
    draw, terms = two_stages(case), terms_of(case)
    moments = linear_moments(lambda noise: draw(noise) - terms[name](noise), noise_shapes(case))
    assert worst_error(moments, dense_conditional(case)) > 1e5 * EXACT


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("side", [0, 1], ids=["row", "col"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 1 not in shape])  # F is symmetric for M = 1 or d = 1
def test_exactness_fails_with_another_g(shape: tuple[int, int, int, int], side: int, wrong: str) -> None:
    case = make_case(*shape)
    factors = list(sides(case))
    factors[side] = factors[side]._replace(G=WRONG[wrong](factors[side]))
    moments = linear_moments(two_stages(case, (factors[0], factors[1])), noise_shapes(case))
    assert worst_error(moments, dense_conditional(case)) > 1e5 * EXACT


def test_the_terms_are_all_there_is() -> None:
    case = make_case(4, 5, 2, 3)
    noise = {name: torch.randn(shape, dtype=torch.double) for name, shape in noise_shapes(case).items()}
    mean = two_stages(case)({name: torch.zeros_like(block) for name, block in noise.items()})
    whole = mean + sum(term(noise) for term in terms_of(case).values())
    torch.testing.assert_close(two_stages(case)(noise), whole)


DRAWS = 200_000


def random_noise(case: Case) -> Noise:
    row, col = sides(case)
    return {"E1": dense_noise(row, col, DRAWS), "E2": column_noise(row, col, DRAWS)}


@pytest.mark.parametrize("shape", [(3, 4, 2, 3), (2, 3, 2, 3), (2, 2, 3, 4)])
def test_two_stage_draw_by_monte_carlo(shape: tuple[int, int, int, int]) -> None:
    """Mean and covariance of 200,000 draws through `column_noise` and `dense_noise`, in standard errors."""
    case = make_case(*shape)
    assert worst_z_score(vec(two_stages(case)(random_noise(case))), dense_conditional(case)) < ERRORS


@pytest.mark.parametrize("name", TERMS)
def test_monte_carlo_fails_without_a_term(name: str) -> None:
    case = make_case(3, 4, 2, 3)
    noise = random_noise(case)
    W = two_stages(case)(noise) - terms_of(case)[name](noise)
    assert worst_z_score(vec(W), dense_conditional(case)) > 2 * ERRORS


def test_noise_has_the_stated_shapes_and_repeats_with_its_generator() -> None:
    case = make_case(4, 5, 2, 3)

    def noise() -> Noise:
        row, col = sides(case)
        generator = torch.Generator().manual_seed(3)
        return {
            "E1": dense_noise(row, col, 7, 2, generator=generator),
            "E2": column_noise(row, col, 7, 2, generator=generator),
        }

    once, again = noise(), noise()
    for name, shape in noise_shapes(case).items():
        assert once[name].shape == (7, 2, *shape)
        assert torch.equal(once[name], again[name])


@pytest.mark.parametrize("shape", SHAPES)
def test_marginalisation_gives_the_prior_back(shape: tuple[int, int, int, int]) -> None:
    """With u ~ N(0, I) and lamda = 1, W ~ N(0, sigma^2 I) exactly."""
    case = make_case(*shape)._replace(lamda=1.0)
    mean, covariance = linear_moments(two_stages(case), noise_shapes(case) | {"u": (shape[2], shape[3])})
    expected = case.sigma**2 * torch.eye(len(mean), dtype=torch.double)
    assert worst_error((mean, covariance), (torch.zeros_like(mean), expected)) < EXACT


def test_marginalisation_by_monte_carlo() -> None:
    case = make_case(3, 4, 2, 3)._replace(lamda=1.0)
    W = two_stages(case)(random_noise(case) | {"u": torch.randn(DRAWS, 2, 3, dtype=torch.double)})
    prior = torch.zeros(12, dtype=torch.double), case.sigma**2 * torch.eye(12, dtype=torch.double)
    assert worst_z_score(vec(W), prior) < ERRORS


@pytest.mark.parametrize("shape", [(3, 2, 2, 2), (2, 3, 3, 4)])
def test_gradients_of_the_draw(shape: tuple[int, int, int, int]) -> None:
    """The reparameterised draw, by finite differences in u, lamda, Z and D."""
    case = make_case(*shape)
    noise = {name: torch.randn(block, dtype=torch.double) for name, block in noise_shapes(case).items()}

    def draw(z_row: Tensor, d_row: Tensor, z_col: Tensor, d_col: Tensor, u: Tensor, lamda: Tensor) -> Tensor:
        row, col = factor(z_row, d_row), factor(z_col, d_col)
        C = draw_columns(u, row, lamda, case.sigma, noise["E2"])
        return draw_dense(C, col, lamda, case.sigma, noise["E1"])

    inputs = [part.requires_grad_() for part in (*case[:5], torch.tensor(case.lamda, dtype=torch.double))]
    assert torch.autograd.gradcheck(draw, inputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_noise_both_stages_give_the_mean(shape: tuple[int, int, int, int]) -> None:
    case = make_case(*shape)
    (row, col), u = sides(case), torch.randn(3, *case.u.shape, dtype=torch.double)
    C = draw_columns(u, row, case.lamda, case.sigma, None)
    torch.testing.assert_close(C, case.sigma * torch.einsum("ro,krc->koc", row.A, u))
    W = draw_dense(C, col, case.lamda, case.sigma, None)
    torch.testing.assert_close(W, conditional_mean(u, row, col, case.sigma))


def test_many_draws_at_once_are_one_by_one() -> None:
    """u and noise with K draws in front; each draw reads its own."""
    case = make_case(4, 5, 2, 3)
    row, col = sides(case)
    noise = {"E1": dense_noise(row, col, 3), "E2": column_noise(row, col, 3)}
    u = torch.randn(3, 2, 3, dtype=torch.double)
    together = two_stages(case)(noise | {"u": u})
    for k in range(3):
        alone = two_stages(case)({name: block[k] for name, block in noise.items()} | {"u": u[k]})
        torch.testing.assert_close(together[k], alone)


def test_lamda_may_be_a_number_or_a_tensor() -> None:
    case = make_case(4, 5, 2, 3)
    row, col = sides(case)
    noise = {"E1": dense_noise(row, col), "E2": column_noise(row, col)}
    tensor = two_stages(case._replace(lamda=torch.tensor(case.lamda, dtype=torch.double)))(noise)
    torch.testing.assert_close(two_stages(case)(noise), tensor)


def test_the_draw_keeps_float32() -> None:
    case = make_case(4, 5, 2, 3)
    single = Case(*(part.float() for part in case[:5]), torch.tensor(case.lamda), case.sigma)
    noise = {name: torch.randn(block, dtype=torch.double) for name, block in noise_shapes(case).items()}
    W = two_stages(single)({name: block.float() for name, block in noise.items()})
    assert W.dtype == torch.float32
    torch.testing.assert_close(W, two_stages(case)(noise).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("inputs", [0, 1, 4])
def test_mean_rows(draws: int, inputs: int, shared: bool) -> None:
    """T C^T by einsum, for rows of all draws or rows of each, and C = sigma A_r^T u left out."""
    case = make_case(4, 5, 2, 3)
    row, _ = sides(case)
    T = torch.randn(1 if shared else draws, inputs, 6, 3, dtype=torch.double)
    u = torch.randn(draws, 2, 3, dtype=torch.double)
    C = draw_columns(u, row, 0.0, case.sigma, None)
    expected = torch.einsum("knpc,koc->knpo", T.expand(draws, -1, -1, -1), C)
    torch.testing.assert_close(mean_rows(T, C), expected)
    torch.testing.assert_close(mean_rows_without_columns(T, u, row, case.sigma), expected)


# ---- both stages at once ---------------------------------------------------------------------------------------------

SIGMA = 1.3


class Both:
    """Everything W (K, d_out, d_in) is made of."""

    def __init__(self, shape: tuple[int, ...], draws: int, dtype: torch.dtype = torch.double) -> None:
        case = make_case(*shape)
        self.row, self.col = sides(case)
        self.u = torch.randn(draws, *case.u.shape, dtype=torch.double)
        shapes = noise_shapes(case)
        self.E1, self.E2 = (torch.randn(draws, *shapes[name], dtype=dtype) for name in ("E1", "E2"))
        lamda = torch.tensor(case.lamda)
        made = (self.u, self.row.A, self.row.G, self.col.A, self.col.G, lamda)
        self.leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in made]

    def run(self, draw: Callable[..., Tensor], *leaves: Tensor) -> Tensor:
        u, A_r, G_r, A_c, G_c, lamda = leaves or self.leaves
        row, col = self.row._replace(A=A_r, G=G_r), self.col._replace(A=A_c, G=G_c)
        return draw(u, row, col, lamda, SIGMA, self.E2, self.E1)


def stage_by_stage(
    u: Tensor, row: Factors, col: Factors, lamda: Tensor, sigma: float, E2: Tensor, E1: Tensor
) -> Tensor:
    return draw_dense(draw_columns(u, row, lamda, sigma, E2), col, lamda, sigma, E1)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_stages_at_once_are_one_after_the_other(shape: tuple[int, ...], draws: int) -> None:
    both = Both(shape, draws)
    found = []
    for draw in (draw_weights, stage_by_stage):
        W = both.run(draw)
        weights = torch.sin(torch.arange(W.numel(), dtype=torch.double)).view_as(W)
        found.append([W, *torch.autograd.grad((W * weights).sum(), both.leaves)])
    with torch.no_grad():
        found.append([both.run(draw_weights), *found[0][1:]])
    for other in found[1:]:
        for got, want in zip(found[0], other, strict=True):
            torch.testing.assert_close(got, want, atol=EXACT, rtol=1e-10)


def test_derivatives_of_both_stages_by_finite_differences() -> None:
    both = Both((2, 3, 2, 2), draws=2)
    assert torch.autograd.gradcheck(lambda *leaves: both.run(draw_weights, *leaves), both.leaves)
    assert torch.autograd.gradgradcheck(lambda *leaves: both.run(draw_weights, *leaves), both.leaves)


@pytest.mark.parametrize("trained", [[0], [1, 2], [3, 4], [5], []])
def test_both_stages_where_only_some_parts_train(trained: list[int]) -> None:
    both = Both((4, 5, 2, 3), draws=2)
    for i, leaf in enumerate(both.leaves):
        leaf.requires_grad_(i in trained)
    W = both.run(draw_weights)
    assert W.requires_grad == bool(trained)
    if trained:
        W.square().sum().backward()
        got = [leaf.grad for leaf in both.leaves]
        assert [i for i, grad in enumerate(got) if grad is not None] == trained
        want = torch.autograd.grad(both.run(stage_by_stage).square().sum(), [both.leaves[i] for i in trained])
        for i, grad in zip(trained, want, strict=True):
            torch.testing.assert_close(got[i], grad, atol=EXACT, rtol=1e-10)


def test_both_stages_inside_transforms() -> None:
    both = Both((4, 5, 2, 3), draws=2)
    leaves = [leaf.detach() for leaf in both.leaves]
    want = torch.autograd.grad(both.run(stage_by_stage).square().sum(), both.leaves)
    got = torch.func.grad(lambda u: both.run(draw_weights, u, *leaves[1:]).square().sum())(leaves[0])
    torch.testing.assert_close(got, want[0], atol=EXACT, rtol=1e-10)
    single = torch.func.vmap(lambda A: both.run(draw_weights, leaves[0], A, *leaves[2:]))(leaves[1].expand(2, -1, -1))
    torch.testing.assert_close(single[1], both.run(stage_by_stage).detach(), atol=EXACT, rtol=1e-10)
