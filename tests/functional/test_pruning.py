"""Which entries go, and what each of them does to the output: against sorting, and against taking it away."""

from __future__ import annotations

import pytest
import torch
from dense_oracle import SHAPES, make_case
from torch import Tensor

from bnn.functional.inducing import factor
from bnn.functional.pruning import output_changes, smallest


@pytest.mark.parametrize("number", [0, 1, 7, 24, 60])
@pytest.mark.parametrize("ties", [False, True])
def test_the_smallest_of_all(number: int, ties: bool) -> None:
    torch.manual_seed(0)
    scores = [torch.rand(4, 5), torch.rand(3), torch.rand(37), torch.rand(0)]
    scores = [(3 * one).floor() for one in scores] if ties else scores
    found = torch.cat([one.flatten() for one in smallest(scores, number)])
    flat = torch.cat([one.flatten() for one in scores])
    expected = torch.zeros(60, dtype=torch.bool)
    expected[flat.argsort(stable=True)[:number]] = True
    assert torch.equal(found, expected)
    assert [one.shape for one in smallest(scores, number)] == [one.shape for one in scores]


@pytest.mark.parametrize("shape", SHAPES)
def test_changes_of_the_output(shape: tuple[int, int, int, int]) -> None:
    """Every entry taken away by itself, the triangles L held; the mean square over uncorrelated inputs is exact."""
    torch.manual_seed(1)
    case = make_case(*shape)
    row, col = factor(case.z_row, case.d_row), factor(case.z_col, case.d_col)
    rms = 0.5 + torch.rand(shape[1], dtype=torch.double)
    middle = torch.linalg.inv(row.L).mT @ case.u @ torch.linalg.inv(col.L)

    def size(W: Tensor) -> Tensor:
        return (W * rms).square().sum().sqrt()

    def without(z: Tensor, i: int, j: int) -> Tensor:
        left = z.clone()
        left[i, j] = 0
        return left

    W = case.z_row.mT @ middle @ case.z_col
    of_row, of_col = output_changes(case.u, row, col, case.z_row, case.z_col, rms)
    for i, j in torch.cartesian_prod(*map(torch.arange, case.z_row.shape)).reshape(-1, 2).tolist():
        change = size(W - without(case.z_row, i, j).mT @ middle @ case.z_col)
        torch.testing.assert_close(of_row[i, j], change / size(W))
    for i, j in torch.cartesian_prod(*map(torch.arange, case.z_col.shape)).reshape(-1, 2).tolist():
        change = size(W - case.z_row.mT @ middle @ without(case.z_col, i, j))
        torch.testing.assert_close(of_col[i, j], change / size(W))
