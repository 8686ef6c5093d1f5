"""Low-rank weights from second moments: against least squares on the data themselves, and gradients at the end."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bnn.functional.kernels import from_matrix, matrix_shape, to_matrix
from bnn.functional.low_rank import RIDGE, Moments, energy_by_rank, energy_kept, low_rank, own_moments


class Case(NamedTuple):
    """A layer with correlated inputs."""

    weight: Tensor
    bias: Tensor | None
    x: Tensor  # (groups, rows, P), with 1 for a bias
    y: Tensor  # (groups, rows, c_out / groups)

    @property
    def moments(self) -> Moments:
        n = self.x.shape[1]
        return Moments(self.x.mT @ self.x / n, self.y.mT @ self.x / n, float(self.y.square().sum() / n))

    def outputs(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        W = to_matrix(weight, bias).unflatten(0, (len(self.x), -1))
        return self.x @ W.mT

    def error(self, weight: Tensor, bias: Tensor | None) -> float:
        return float((self.y - self.outputs(weight, bias)).square().sum() / self.x.shape[1])


def case(shape: tuple[int, ...], bias: bool, groups: int = 1, noise: float = 0.0, rows: int = 400) -> Case:
    torch.manual_seed(len(shape) + groups)
    weight = torch.randn(shape).double()
    own = torch.randn(shape[0]).double() if bias else None
    P = weight[0].numel()
    mix = torch.randn(groups, P, P).double() * torch.logspace(0, -2, P).double()
    x = torch.randn(groups, rows, P).double() @ mix.mT + 0.3
    x = F.pad(x, (0, 1), value=1.0) if bias else x
    made = Case(weight, own, x, x.new_zeros(()))
    y = made.outputs(weight, own)
    return made._replace(y=y + noise * y.std() * torch.randn_like(y))


SHAPES = [(6, 20), (8, 4, 3), (8, 4, 3, 3), (6, 2, 2, 3, 3)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
with_bias = pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
every_kernel = pytest.mark.parametrize("kernel", ["paper", "split"])


def ridge_of(one: Case) -> float:
    return RIDGE * float(one.moments.S.diagonal(dim1=-2, dim2=-1).mean())


def loss(W: Tensor, one: Case, kernel: str) -> Tensor:
    """What `low_rank` minimises, from the data."""
    weight, bias = from_matrix(W, one.weight.shape, one.bias is not None, kernel)
    away = (to_matrix(weight, bias) - to_matrix(one.weight, one.bias)).square().sum()
    return (one.y - one.outputs(weight, bias)).square().sum() / one.x.shape[1] + ridge_of(one) * away


@every_shape
@with_bias
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_paper_s_matrix_is_reduced_rank_regression(shape: tuple[int, ...], bias: bool, noise: float) -> None:
    """The best W of rank k: outputs of least squares on the data, projected to their k leading directions.

    The ridge is more data: an input per entry of x, with the outputs of the weights at hand.
    """
    one, k = case(shape, bias, noise=noise), 3
    n, P = one.x.shape[1:]
    more = (n * ridge_of(one)) ** 0.5 * torch.eye(P).double()
    x = torch.cat([one.x[0], more])
    y = torch.cat([one.y[0], more @ to_matrix(one.weight, one.bias).mT])
    fitted = x @ torch.linalg.lstsq(x, y).solution
    directions = torch.linalg.svd(fitted, full_matrices=False).Vh[:k]
    best = float((y - fitted @ directions.mT @ directions).square().sum() / n)
    found = low_rank(one.weight, one.bias, one.moments, k)
    assert torch.linalg.matrix_rank(found.W, rtol=1e-9) == k
    assert float(loss(found.W, one, "paper")) == pytest.approx(best, rel=1e-7)
    weight, own = from_matrix(found.W, shape, bias)
    assert found.kept == pytest.approx(1 - one.error(weight, own) / one.moments.energy, abs=1e-9)


CASES = [((6, 20), 1, "paper"), ((8, 4, 3, 3), 2, "paper"), ((8, 4, 3, 3), 1, "split"), ((8, 4, 3, 3), 2, "split")]
CASES += [
    ((8, 4, 3), 1, "split"),
    ((6, 1, 3, 3), 6, "split"),
    ((6, 2, 2, 3, 3), 1, "split"),
    ((6, 3, 1, 1), 2, "split"),
]


@pytest.mark.parametrize(("shape", "groups", "kernel"), CASES, ids=str)
@with_bias
def test_alternation_lowers_the_error_down_to_a_stationary_point(
    shape: tuple[int, ...], groups: int, kernel: str, bias: bool
) -> None:
    one, k = case(shape, bias, groups, noise=0.2), 2
    errors = [float(loss(low_rank(one.weight, one.bias, one.moments, k, kernel, r).W, one, kernel)) for r in range(6)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(errors)), errors
    W = low_rank(one.weight, one.bias, one.moments, k, kernel, rounds=1000).W
    U, s, V = torch.linalg.svd(W, full_matrices=False)
    assert (s > 1e-9 * s[0]).sum() <= k
    C, A = (U[:, :k] * s[:k]).requires_grad_(), V[:k].clone().requires_grad_()
    gradients = torch.autograd.grad(loss(C @ A, one, kernel), [C, A])
    start = torch.autograd.grad(loss(torch.ones_like(C) @ A, one, kernel), [A])
    assert max(g.norm() for g in gradients) < 1e-3 * start[0].norm()


@every_shape
@with_bias
@every_kernel
def test_nothing_is_lost_at_full_rank(shape: tuple[int, ...], bias: bool, kernel: str) -> None:
    one = case(shape, bias)
    found = low_rank(one.weight, one.bias, one.moments, 1000, kernel)
    weight, own = from_matrix(found.W, shape, bias, kernel)
    assert found.kept == pytest.approx(1, abs=1e-9)
    assert one.error(weight, own) < 1e-9 * one.moments.energy


@every_kernel
def test_inputs_that_never_show_keep_their_weights(kernel: str) -> None:
    one = case((6, 4, 3, 3), False)
    x = one.x.clone()
    x[..., :9] = 0  # a dead channel
    one = one._replace(x=x, y=one._replace(x=x).outputs(one.weight, None))
    weight, _ = from_matrix(low_rank(one.weight, None, one.moments, 1000, kernel).W, (6, 4, 3, 3), False, kernel)
    torch.testing.assert_close(weight, one.weight, rtol=1e-4, atol=1e-4)


@every_kernel
def test_a_layer_that_sees_only_zeros_keeps_its_weights(kernel: str) -> None:
    weight = torch.randn(6, 4, 3, 3)
    moments = Moments(torch.zeros(1, 36, 36).double(), torch.zeros(1, 6, 36).double(), 0.0)
    found = low_rank(weight, None, moments, 100, kernel)
    assert found.kept == 1
    torch.testing.assert_close(from_matrix(found.W, weight.shape, False, kernel)[0].float(), weight)


@pytest.mark.parametrize(("shape", "groups", "kernel"), CASES, ids=str)
@with_bias
def test_energy_by_rank_is_what_a_start_keeps(shape: tuple[int, ...], groups: int, kernel: str, bias: bool) -> None:
    one = case(shape, bias, groups)
    gains = energy_by_rank(one.weight, one.bias, one.moments.S, kernel)
    assert len(gains) == min(matrix_shape(shape, bias, kernel))
    assert bool((gains >= 0).all())
    assert float(gains.sum()) == pytest.approx(one.moments.energy, rel=1e-3)
    for k in (1, 2):
        kept = low_rank(one.weight, one.bias, one.moments, k, kernel, rounds=0).kept
        refit = low_rank(one.weight, one.bias, one.moments, k, kernel, rounds=10).kept
        assert kept - 1e-3 <= float(gains[:k].sum()) / one.moments.energy <= refit + 1e-3


@every_shape
@every_kernel
def test_without_moments_the_energy_is_that_of_the_matrix(shape: tuple[int, ...], kernel: str) -> None:
    weight = torch.randn(shape)
    W = to_matrix(weight, None, kernel).double()
    torch.testing.assert_close(energy_by_rank(weight, None, kernel=kernel), torch.linalg.svdvals(W).square())


def test_own_moments_are_those_of_the_layer_s_outputs() -> None:
    one = case((8, 4, 3), True, groups=2)
    own = own_moments(one.weight, one.bias, one.moments.S)
    torch.testing.assert_close(own.K, one.moments.K)
    assert own.energy == pytest.approx(one.moments.energy)
    assert energy_kept(one.weight, one.bias, own) == pytest.approx(1)
    assert energy_kept(0 * one.weight, torch.zeros(8).double(), own) == pytest.approx(0)
