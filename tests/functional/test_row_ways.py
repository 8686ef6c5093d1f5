"""The five ways of drawing outputs, against the dense Gaussian of all rows, inputs and draws at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from dense_oracle import (
    EXACT,
    SHAPES,
    Case,
    Noise,
    Sampler,
    Shapes,
    dense_conditional,
    make_case,
    output_moments,
    silence,
    stage_covariances,
    unit_moments,
    without,
    worst_error,
)
from torch import Tensor

from bnn.functional import draws
from bnn.functional.cost import Way
from bnn.functional.inducing import conditional_covariance, factor
from bnn.functional.linalg import safe_sqrt, semidefinite_cholesky

Root = Callable[[Tensor], Tensor]  # L with L L^T = G

JOINT = [Way.JOINT, Way.JOINT_WITHOUT_COLUMNS]
PER_ROW = [Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS]
COLUMNS = [Way.DENSE, Way.JOINT, Way.PER_ROW]
K, N, P = 2, 2, 3  # draws, inputs, rows of an input
SIZES = [(1, 1, 3), (2, 2, 3), (3, 1, 1), (1, 2, 7)]  # (draws, inputs, rows); 7 rows: more than d_in, X X^T is singular


class Setting(NamedTuple):
    """Parameters with u (K, M_out, M_in), and the rows X (K, N, p, d_in), or (1, N, p, d_in) for all draws."""

    case: Case
    X: Tensor


def make_setting(
    shape: tuple[int, ...], draws: int = K, inputs: int = N, rows: int = P, shared: bool = False
) -> Setting:
    case = make_case(*shape)
    u = torch.randn(draws, *case.u.shape, dtype=torch.double)
    X = torch.randn(1 if shared else draws, inputs, rows, shape[1], dtype=torch.double)
    return Setting(case._replace(u=u), X)


def noise_shapes(way: Way, setting: Setting) -> Shapes:
    (k, m_out, m_in), (n, p, d_in), d_out = setting.case.u.shape, setting.X.shape[1:], setting.case.z_row.shape[1]
    columns = {"E2": (k, d_out, m_in)}
    wide = (k, n, p, d_out)
    return {
        Way.DENSE: columns | {"E1": (k, d_out, d_in)},
        Way.JOINT: columns | {"N": wide},
        Way.JOINT_WITHOUT_COLUMNS: {"N1": wide, "N2": wide},
        Way.PER_ROW: columns | {"n": wide},
        Way.PER_ROW_WITHOUT_COLUMNS: {"n": wide, "m": (k, n, p, m_out)},
    }[way]


def sampler(way: Way, setting: Setting, root: Root = semidefinite_cholesky) -> Sampler:
    """The outputs (K, N, p, d_out) by one of the ways, from `bnn` alone, as a function of the noise."""
    (z_row, d_row, z_col, d_col, u, lamda, sigma), X = setting
    row, col = factor(z_row, d_row), factor(z_col, d_col)
    T, scale = X @ col.A.mT, lamda * sigma
    squares, inner = X.square().sum(-1), T @ T.mT
    a, b = safe_sqrt(squares), safe_sqrt(squares - T.square().sum(-1))
    L, L_T = (root(X @ X.mT - inner), root(inner)) if way in JOINT else (None, None)

    def columns(noise: Noise) -> Tensor:
        return draws.draw_columns(u, row, lamda, sigma, noise["E2"])

    def dense(noise: Noise) -> Tensor:
        W = draws.draw_dense(columns(noise), col, lamda, sigma, noise["E1"])
        return X @ W[:, None].mT

    def joint_without_columns(noise: Noise) -> Tensor:
        return draws.joint_without_columns(T, u, row, L, L_T, scale, sigma, draws.JointNoise(**noise))

    def per_row_without_columns(noise: Noise) -> Tensor:
        both = torch.cat([noise["n"], noise["m"]], dim=-1)
        return draws.per_row_without_columns(T, u, row, a, b, scale, sigma, both)

    return {
        Way.DENSE: dense,
        Way.JOINT: lambda noise: draws.joint(T, columns(noise), L, scale, noise["N"]),
        Way.JOINT_WITHOUT_COLUMNS: joint_without_columns,
        Way.PER_ROW: lambda noise: draws.per_row(T, columns(noise), b, scale, noise["n"]),
        Way.PER_ROW_WITHOUT_COLUMNS: per_row_without_columns,
    }[way]


def moments(way: Way, setting: Setting, root: Root = semidefinite_cholesky) -> tuple[Tensor, Tensor]:
    """Exact mean and covariance of all outputs of all draws."""
    return unit_moments(sampler(way, setting, root), noise_shapes(way, setting))


# Who shares the randomness of each stage: the rows of one draw, of one input in one draw, or nobody.
SHARES = {
    Way.DENSE: ("draw", "draw"),
    Way.JOINT: ("draw", "input"),
    Way.JOINT_WITHOUT_COLUMNS: ("input", "input"),
    Way.PER_ROW: ("draw", "row"),
    Way.PER_ROW_WITHOUT_COLUMNS: ("row", "row"),
}


def same(unit: str, shape: tuple[int, int, int, int]) -> Tensor:
    """Which pairs of outputs (K, N, p, d_out) belong to the same draw, input of a draw, or row; flattened."""
    k, n, p, d_out = shape
    size = {"draw": n * p * d_out, "input": p * d_out, "row": d_out}[unit]
    index = torch.arange(k * n * p * d_out) // size
    return index[:, None] == index


def expected(way: Way, setting: Setting) -> tuple[Tensor, Tensor]:
    """What `moments` has to return: the dense Gaussian, less the correlation that the way gives up."""
    case, X = setting
    k, d_out = len(case.u), case.z_row.shape[1]
    X = X.expand(k, *X.shape[1:])
    mean = torch.cat([output_moments(case._replace(u=u), x.flatten(0, 1))[0] for u, x in zip(case.u, X, strict=True)])
    first, second = stage_covariances(case, X.flatten(0, 2))
    masks = [same(unit, (*X.shape[:3], d_out)) for unit in SHARES[way]]
    return mean, first * masks[0] + second * masks[1]


def blocks(covariance: Tensor, size: int) -> list[Tensor]:
    """The blocks of so many entries along the diagonal."""
    return [covariance[i : i + size, i : i + size] for i in range(0, len(covariance), size)]


def error_by_input(setting: Setting, way: Way, rows: int, root: Root = semidefinite_cholesky) -> float:
    """The largest error of mean and covariance over blocks of so many rows, against the dense Gaussian of the block."""
    case, X = setting
    mean, covariance = moments(way, setting, root)
    size = rows * case.z_row.shape[1]
    X = X.expand(len(case.u), *X.shape[1:])
    u = case.u.repeat_interleave(X.shape[1] * X.shape[2] // rows, dim=0)
    inputs = X.flatten(0, 2).split(rows)
    truth = [output_moments(case._replace(u=v), x) for v, x in zip(u, inputs, strict=True)]
    found = zip(mean.split(size), blocks(covariance, size), strict=True)
    return max(worst_error(f, t) for f, t in zip(found, truth, strict=True))


# ---- moments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_two_stages_add_up(shape: tuple[int, ...]) -> None:
    """The oracle's own check: its stages are the covariance of the dense conditional, and that of `bnn`."""
    case, X = make_setting(shape, draws=1, inputs=1)
    case = case._replace(u=case.u[0])
    truth = output_moments(case, X[0, 0])
    assert worst_error((truth[0], sum(stage_covariances(case, X[0, 0]))), truth) < EXACT
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    ours = conditional_covariance(row, col, case.lamda, case.sigma)
    torch.testing.assert_close(ours, dense_conditional(case)[1], atol=EXACT, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [Way.DENSE, *JOINT])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_rows_of_an_input_are_exact(shape: tuple[int, ...], way: Way, size: tuple[int, int, int]) -> None:
    assert error_by_input(make_setting(shape, *size), way, rows=size[2]) < EXACT


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", PER_ROW)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_is_exact(shape: tuple[int, ...], way: Way, size: tuple[int, int, int]) -> None:
    assert error_by_input(make_setting(shape, *size), way, rows=1) < EXACT


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("shape", SHAPES)
def test_who_shares_the_draw(shape: tuple[int, ...], way: Way, shared: bool) -> None:
    """Two draws of two inputs of three rows: what is shared has its covariance, the rest is independent."""
    setting = make_setting(shape, shared=shared)
    assert worst_error(moments(way, setting), expected(way, setting)) < EXACT


@pytest.mark.parametrize("way", Way)
def test_draws_are_independent_and_inputs_as_well_but_for_the_columns(way: Way) -> None:
    setting = make_setting((4, 5, 2, 3), shared=True)
    covariance = moments(way, setting)[1].reshape(K, N, P * 4, K, N, P * 4)
    assert covariance[0, :, :, 1].abs().max() == 0
    between = covariance[0, 0, :, 0, 1].abs().max()
    assert between > 0.01 if way in COLUMNS else between == 0


@pytest.mark.parametrize("way", Way)
def test_zero_and_equal_rows(way: Way) -> None:
    """Singular Gram matrices: the outputs of a zero row are 0, those of equal rows are equal in the joint ways."""
    setting = make_setting((4, 5, 2, 3))
    setting.X[:, :, 1] = 0
    setting.X[:, :, 2] = setting.X[:, :, 0]
    mean, covariance = moments(way, setting)
    assert worst_error((mean, covariance), expected(way, setting)) < EXACT
    assert mean.reshape(K, N, P, 4)[:, :, 1].abs().max() == 0
    if way not in PER_ROW:
        block = covariance[:12, :12].reshape(3, 4, 3, 4)
        torch.testing.assert_close(block[0, :, 2], block[0, :, 0], atol=EXACT, rtol=0)


# ---- the tests above can fail --------------------------------------------------------------------------------------


def diagonal_root(gram: Tensor) -> Tensor:
    """A root that keeps every row's variance, and loses the correlation between rows."""
    return torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1).sqrt())


@pytest.mark.parametrize("way", JOINT)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_correlation_between_rows_is_seen(shape: tuple[int, ...], way: Way) -> None:
    setting = make_setting(shape)
    assert error_by_input(setting, way, rows=P, root=diagonal_root) > 1e5 * EXACT
    assert error_by_input(setting, way, rows=1, root=diagonal_root) < EXACT  # nothing else is lost


@pytest.mark.parametrize("way", PER_ROW)
@pytest.mark.parametrize("shape", SHAPES)
def test_per_row_is_not_joint(shape: tuple[int, ...], way: Way) -> None:
    assert error_by_input(make_setting(shape), way, rows=P) > 1e5 * EXACT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", Way)
def test_every_block_of_noise_counts(way: Way, shape: tuple[int, ...]) -> None:
    setting = make_setting(shape)
    shapes = noise_shapes(way, setting)
    draw = sampler(way, setting)
    for name in shapes:
        less = unit_moments(lambda noise, name=name: draw(without(noise, name)), shapes)
        assert worst_error(less, expected(way, setting)) > 1e5 * EXACT, name


# ---- one row, shapes, special values -------------------------------------------------------------------------------


def random_noise(way: Way, setting: Setting) -> Noise:
    return {name: torch.randn(s, dtype=torch.double) for name, s in noise_shapes(way, setting).items()}


@pytest.mark.parametrize("shared", [False, True])
def test_one_row_with_columns_is_the_joint_way(shared: bool) -> None:
    """The same numbers from the same noise: L is b."""
    setting = make_setting((4, 5, 2, 3), draws=3, rows=1, shared=shared)
    noise = random_noise(Way.JOINT, setting)
    noise["n"] = noise["N"]
    joint, single = (sampler(way, setting)(noise) for way in (Way.JOINT, Way.PER_ROW))
    torch.testing.assert_close(single, joint, atol=EXACT, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_row_without_columns_is_the_joint_way(shape: tuple[int, ...]) -> None:
    """The same mean and covariance, with less noise."""
    setting = make_setting(shape, rows=1)
    joint, single = (moments(way, setting) for way in (Way.JOINT_WITHOUT_COLUMNS, Way.PER_ROW_WITHOUT_COLUMNS))
    assert worst_error(joint, single) < EXACT


@pytest.mark.parametrize("way", Way)
def test_shared_inputs_are_repeated_inputs(way: Way) -> None:
    """(1, N, p, d_in) for all draws gives what the same rows (K, N, p, d_in) give."""
    setting = make_setting((4, 5, 2, 3), draws=3, inputs=4, shared=True)
    noise = random_noise(way, setting)
    repeated = setting._replace(X=setting.X.repeat(3, 1, 1, 1))
    torch.testing.assert_close(sampler(way, setting)(noise), sampler(way, repeated)(noise), atol=EXACT, rtol=0)


@pytest.mark.parametrize("way", Way)
def test_draws_and_inputs_at_once_are_one_by_one(way: Way) -> None:
    """Every draw reads its own u, rows and noise, and no other's."""
    setting = make_setting((4, 5, 2, 3), draws=3, inputs=2)
    noise = random_noise(way, setting)
    together = sampler(way, setting)(noise)
    assert together.shape == (3, 2, P, 4)
    for k in range(3):
        one = Setting(setting.case._replace(u=setting.case.u[k : k + 1]), setting.X[k : k + 1])
        alone = sampler(way, one)({name: block[k : k + 1] for name, block in noise.items()})
        torch.testing.assert_close(alone[0], together[k], atol=EXACT, rtol=0)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_that_are_drawn_one_by_one_need_not_know_their_inputs(shared: bool) -> None:
    """(K, N p, ...) gives what (K, N, p, ...) gives."""
    (case, X), d_out = make_setting((4, 5, 2, 3), draws=3, shared=shared), 4
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    T = X @ col.A.mT
    a, b = X.square().sum(-1).sqrt(), (X.square().sum(-1) - T.square().sum(-1)).sqrt()
    noise, C = torch.randn(3, N, P, d_out + 2, dtype=torch.double), torch.randn(3, d_out, 3, dtype=torch.double)

    def both(T: Tensor, a: Tensor, b: Tensor, noise: Tensor) -> list[Tensor]:
        without = draws.per_row_without_columns(T, case.u, row, a, b, 0.7, case.sigma, noise)
        return [draws.per_row(T, C, b, 0.7, noise[..., :d_out]), without]

    flat = both(*(part.flatten(1, 2) for part in (T, a, b, noise)))
    for one, other in zip(flat, both(T, a, b, noise), strict=True):
        assert one.shape == (3, N * P, d_out)
        torch.testing.assert_close(one, other.flatten(1, 2), atol=EXACT, rtol=0)


@pytest.mark.parametrize(("inputs", "rows"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("way", Way)
def test_no_inputs_and_no_rows(way: Way, inputs: int, rows: int) -> None:
    for count, shared in itertools.product((1, 3), (False, True)):
        setting = make_setting((4, 5, 2, 3), count, inputs, rows, shared)
        assert sampler(way, setting)(random_noise(way, setting)).shape == (count, inputs, rows, 4)


@pytest.mark.parametrize("way", Way)
def test_without_lamda_only_the_mean_is_left(way: Way) -> None:
    setting = make_setting((4, 5, 2, 3))
    setting = setting._replace(case=setting.case._replace(lamda=0.0))
    mean = sampler(way, setting)(silence(noise_shapes(way, setting)))
    torch.testing.assert_close(sampler(way, setting)(random_noise(way, setting)), mean, atol=EXACT, rtol=0)
    torch.testing.assert_close(mean.flatten(), expected(way, setting)[0], atol=EXACT, rtol=0)


# ---- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", Way)
def test_gradients(way: Way, shared: bool) -> None:
    """Finite differences in Z, D, u, lamda and X; 2 rows < d_in - M_in, so that both Gram matrices are regular."""
    case, X = make_setting((2, 6, 2, 3), inputs=1, rows=2, shared=shared)
    noise = random_noise(way, Setting(case, X))

    def draw(*parts: Tensor) -> Tensor:
        return sampler(way, Setting(Case(*parts[:-1], case.sigma), parts[-1]))(noise)

    parts = [*case[:5], torch.tensor(case.lamda, dtype=torch.double), X]
    assert torch.autograd.gradcheck(draw, [part.requires_grad_() for part in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
@pytest.mark.parametrize("way", Way)
def test_gradients_of_zero_and_equal_rows_are_finite(way: Way, dtype: torch.dtype) -> None:
    case, X = make_setting((4, 5, 2, 3))
    X[:, :, 1], X[:, :, 2] = 0, X[:, :, 0]
    noise = {name: block.to(dtype) for name, block in random_noise(way, Setting(case, X)).items()}
    parts = [part.to(dtype).requires_grad_() for part in (*case[:5], torch.tensor(case.lamda), X)]
    y = sampler(way, Setting(Case(*parts[:-1], case.sigma), parts[-1]))(noise)
    y.square().sum().backward()
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert all(part.grad.isfinite().all() for part in parts)
