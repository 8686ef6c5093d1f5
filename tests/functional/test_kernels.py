"""The weights of a convolution as the paper's matrix and split: entry by entry, and back."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from bnn.functional.kernels import KERNELS, from_matrix, matrix_shape, settled_kernel, to_matrix, weight_count

SHAPES = [(4, 3), (4, 3, 5), (4, 3, 1), (5, 2, 3, 2), (3, 4, 2, 1), (2, 3, 2, 4, 3)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
with_bias = pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
every_kernel = pytest.mark.parametrize("kernel", [*KERNELS, "auto"])


@every_shape
@every_kernel
@with_bias
def test_there_and_back(shape: tuple[int, ...], kernel: str, bias: bool) -> None:
    weight, own = torch.randn(shape).double(), torch.randn(shape[0]).double() if bias else None
    W = to_matrix(weight, own, kernel)
    assert W.shape == matrix_shape(shape, bias, kernel)
    back, column = from_matrix(W, shape, bias, kernel)
    assert torch.equal(back, weight)
    if own is None:
        assert column is None
    else:
        assert column is not None
        torch.testing.assert_close(column, own, rtol=1e-14, atol=0)
    batch, columns = from_matrix(torch.stack([W, 2 * W])[None], shape, bias, kernel)
    assert torch.equal(batch[0, 1], 2 * weight)
    assert columns is None or torch.equal(columns[0, 1], 2 * column)  # type: ignore[operator]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 2], ids=str)
def test_rows_and_columns_of_a_split_kernel(shape: tuple[int, ...]) -> None:
    """W[(o, kw), (c, kh)], the last index fastest."""
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    W = to_matrix(weight, bias, "split")
    for o, *column, tap in itertools.product(*map(range, shape)):
        place = sum(i * math.prod(shape[j + 2 : -1]) for j, i in enumerate(column))
        assert W[o * shape[-1] + tap, place] == weight[(o, *column, tap)]
    torch.testing.assert_close(W[:, -1].reshape(shape[0], -1), (bias / shape[-1] ** 0.5)[:, None].expand(-1, shape[-1]))


@every_shape
@every_kernel
def test_a_bias_has_the_prior_of_an_entry(shape: tuple[int, ...], kernel: str) -> None:
    """As a function of the entries of W, it is one of norm 1."""
    rows, cols = matrix_shape(shape, True, kernel)
    W = torch.zeros(rows, cols, dtype=torch.double, requires_grad=True)
    _, bias = from_matrix(W, shape, True, kernel)
    assert bias is not None
    for one in bias:
        (slope,) = torch.autograd.grad(one, W, retain_graph=True)
        torch.testing.assert_close(slope.norm(), torch.ones((), dtype=torch.double))


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((64, 64, 3, 3), "split"),
        ((192, 64, 3, 3), "paper"),  # 192 x 576, as cheap as (576 x 192)
        ((191, 64, 3, 3), "split"),
        ((64, 3, 7, 7), "paper"),  # a stem
        ((64, 1, 3, 3), "paper"),  # depthwise
        ((16, 64, 1, 1), "paper"),
        ((16, 64, 3, 1), "paper"),
        ((16, 64, 1, 3), "split"),
        ((16, 32, 5), "split"),
        ((32, 32, 5), "paper"),
        ((8, 4, 3, 3, 3), "split"),
        ((4, 100), "paper"),
    ],
)
def test_auto_takes_the_fewest_parameters_per_rank(shape: tuple[int, ...], kernel: str) -> None:
    assert settled_kernel("auto", shape) == kernel
    other = next(one for one in KERNELS if one != kernel)
    assert sum(matrix_shape(shape, False, "auto")) <= sum(matrix_shape(shape, False, other))


@every_shape
def test_settled_kernels_stay(shape: tuple[int, ...]) -> None:
    """A layer without taps in its last dimension has one matrix; what is settled is what it says."""
    for kernel in (*KERNELS, "auto"):
        settled = settled_kernel(kernel, shape)
        assert settled in KERNELS
        assert settled_kernel(settled, shape) == settled
    if len(shape) == 2 or shape[-1] == 1:
        assert settled_kernel("split", shape) == "paper"


def test_weights_are_those_of_the_layer() -> None:
    for kernel in KERNELS:
        rows, cols = matrix_shape((4, 3, 2, 5), True, kernel)
        assert weight_count((4, 3, 2, 5), True) == 4 * 3 * 2 * 5 + 4
        assert rows * cols == (124 if kernel == "paper" else 120 + 4 * 5)
