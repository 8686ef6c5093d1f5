"""Positive scales, packed triangles, and the rescue of Cholesky."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bnn.functional.linalg import (
    SOFTPLUS_FLOOR,
    FactorisationError,
    NumericalWarning,
    at_least_float32,
    inverse_softplus,
    pack_tril,
    positive,
    safe_cholesky,
    safe_sqrt,
    unpack_tril,
    without_autocast,
)

# ---- safe_cholesky ---------------------------------------------------------------------------------------------------


def positive_definite(n: int, dtype: torch.dtype, *batch: int) -> Tensor:
    root = torch.randn(*batch, n, n + 2, dtype=dtype)
    return root @ root.mT


def with_eigenvalues(*values: float) -> Tensor:
    Q = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.double)).Q
    matrix = Q @ torch.diag(torch.tensor(values, dtype=torch.double)) @ Q.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_a_healthy_matrix_is_untouched(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    matrix = positive_definite(6, dtype, *batch)
    assert torch.equal(safe_cholesky(matrix), torch.linalg.cholesky(matrix))


def test_gradient_through_a_healthy_matrix() -> None:
    root = torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: safe_cholesky(r @ r.T), root)


@pytest.mark.parametrize(("worst", "jitter"), [(-1e-12, "2e-12"), (-1e-8, "2e-08"), (-1e-5, "2e-05")])
def test_a_slightly_indefinite_matrix_gets_the_least_jitter_and_a_warning(worst: float, jitter: str) -> None:
    matrix = with_eigenvalues(1.0, 1.0, 1.0, worst)  # mean diagonal 3/4
    with pytest.warns(NumericalWarning, match=rf"Psi_r of shape \(4, 4\) was not positive definite; added {jitter}"):
        L = safe_cholesky(matrix, "Psi_r")
    added = L @ L.T - matrix
    assert added.diagonal().max() < 30 * abs(worst)  # tenfold steps
    torch.testing.assert_close(added, torch.diag(added.diagonal()), atol=1e-14, rtol=0)


def test_gradient_through_jitter_is_finite() -> None:
    matrix = with_eigenvalues(1.0, 1.0, -1e-8).requires_grad_()
    with pytest.warns(NumericalWarning, match="not positive definite"):
        L = safe_cholesky(matrix)
    L.square().sum().backward()
    assert bool(matrix.grad.isfinite().all())
    # |L|^2 is the trace of the matrix plus the jitter: its gradient is the identity but for the jitter
    torch.testing.assert_close(matrix.grad, torch.eye(3, dtype=torch.double), atol=1e-3, rtol=0)


def test_one_bad_matrix_of_a_batch_is_rescued() -> None:
    batch = torch.stack([with_eigenvalues(1.0, 2.0, 3.0), with_eigenvalues(1.0, 1.0, -1e-9)])
    with pytest.warns(NumericalWarning, match=r"of shape \(2, 3, 3\)"):
        L = safe_cholesky(batch)
    torch.testing.assert_close(L @ L.mT, batch, atol=1e-7, rtol=0)


def test_a_hopeless_matrix_is_a_named_error_without_a_warning() -> None:
    with pytest.raises(FactorisationError, match=r"Psi_c of shape \(3, 3\) is not positive definite even with"):
        safe_cholesky(with_eigenvalues(1.0, 1.0, -0.5), "Psi_c")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 2), (2, 1)])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_nan_is_reported_as_nan(n: int, place: tuple[int, int], bad: float) -> None:
    row, col = (min(i, n - 1) for i in place)
    matrix = torch.eye(n)
    matrix[row, col] = matrix[col, row] = bad
    with pytest.raises(FactorisationError, match=r"Psi of shape .* holds [12] NaN or infinite entries"):
        safe_cholesky(matrix, "Psi")


def test_safe_cholesky_inside_vmap_and_grad() -> None:
    batch = positive_definite(3, torch.double, 5)
    torch.testing.assert_close(torch.func.vmap(safe_cholesky)(batch), torch.linalg.cholesky(batch))
    log_det = torch.func.vmap(torch.func.grad(lambda m: 2 * safe_cholesky(m).diagonal().log().sum()))
    gradient = log_det(batch)
    torch.testing.assert_close((gradient + gradient.mT) / 2, torch.linalg.inv(batch))


# ---- positive --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cap", [None, 0.1, 3.0])
def test_values_of_positive(dtype: torch.dtype, cap: float | None) -> None:
    raw = torch.tensor([-1e4, -31.0, -30.0, -29.0, -7.0, -2.3, 0.0, 2.9, 3.1, 25.0, 1e4], dtype=dtype)
    expected = [min(math.log1p(math.exp(r)) if r < 700 else r, cap or math.inf) for r in raw.clamp(min=-30).tolist()]
    torch.testing.assert_close(positive(raw, cap), torch.tensor(expected, dtype=dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_positive_is_never_zero(dtype: torch.dtype) -> None:
    value = positive(torch.tensor([-1e4, -60.0, -30.0, -12.0], dtype=dtype))
    assert value.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert bool((value > 0).all())
    assert bool(value.log().isfinite().all())
    torch.testing.assert_close(
        value[0].double(), torch.tensor(math.exp(SOFTPLUS_FLOOR), dtype=torch.double), rtol=1e-5, atol=0
    )


def gradient(raw: float, cap: float | None, upstream: float) -> float:
    x = torch.tensor(raw, dtype=torch.double, requires_grad=True)
    (upstream * positive(x, cap)).backward()
    return float(x.grad)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("upstream", [2.0, -3.0])
@pytest.mark.parametrize(("raw", "cap"), [(-29.9, None), (-5.0, 0.1), (0.3, None), (0.3, 2.0), (8.0, None)])
def test_between_the_bounds_the_slope_is_that_of_softplus(raw: float, cap: float | None, upstream: float) -> None:
    assert gradient(raw, cap, upstream) == pytest.approx(upstream * sigmoid(raw), rel=1e-12)


@pytest.mark.parametrize("raw", [0.5, 5.0, 100.0])
def test_beyond_the_cap_only_the_way_back_is_open(raw: float) -> None:
    assert gradient(raw, 0.1, 2.0) == pytest.approx(2 * sigmoid(raw), rel=1e-12)  # descent lowers raw
    assert gradient(raw, 0.1, -2.0) == 0.0  # descent would raise it further


@pytest.mark.parametrize("raw", [-30.0, -31.0, -1e4])
def test_below_the_floor_only_the_way_back_is_open(raw: float) -> None:
    assert gradient(raw, 0.1, -2.0) == pytest.approx(-2 * sigmoid(-30.0), rel=1e-9, abs=0)  # descent raises raw
    assert gradient(raw, 0.1, 2.0) == 0.0


def test_a_scale_at_its_cap_comes_back_by_descent() -> None:
    raw = torch.tensor(4.0, requires_grad=True)
    for _ in range(200):
        (slope,) = torch.autograd.grad((positive(raw, 0.1) - 0.05).square(), raw)
        raw.data -= 20 * slope
    assert positive(raw, 0.1).item() == pytest.approx(0.05, abs=1e-3)


def test_gradcheck_of_positive_between_the_bounds() -> None:
    raw = torch.linspace(-6, 1.5, 7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(positive, raw)
    assert torch.autograd.gradcheck(lambda x: positive(x, 2.0), raw)
    assert torch.autograd.gradgradcheck(positive, raw)


def test_positive_inside_grad_and_vmap() -> None:
    raw = torch.tensor([-40.0, -3.0, 0.5, 9.0], dtype=torch.double)
    torch.testing.assert_close(torch.func.vmap(lambda x: positive(x, 1.0))(raw), positive(raw, 1.0))
    for upstream in (1.0, -1.0):
        rule = torch.func.vmap(torch.func.grad(lambda x, up=upstream: up * positive(x, 1.0)))
        expected = [gradient(value, 1.0, upstream) for value in raw.tolist()]
        torch.testing.assert_close(rule(raw), torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-8)])
def test_inverse_softplus(dtype: torch.dtype, tolerance: float) -> None:
    value = torch.logspace(-7, math.log10(50), 60, dtype=torch.double).to(dtype)
    raw = inverse_softplus(value)
    torch.testing.assert_close(F.softplus(raw), value, rtol=tolerance, atol=0)
    oracle = torch.tensor([math.log(math.expm1(v)) for v in value.tolist()], dtype=dtype)
    torch.testing.assert_close(raw, oracle, rtol=2e-6, atol=2e-6)
    assert inverse_softplus(torch.tensor(1e4, dtype=dtype)) == 1e4  # where expm1 overflows


# ---- packed triangles, square roots, types ---------------------------------------------------------------------------


def test_layout_of_a_packed_triangle() -> None:
    packed = torch.tensor([0.1, 0.2, 0.3, 4.0, 5.0, 6.0])
    a, b, c = F.softplus(packed[:3]).tolist()
    torch.testing.assert_close(
        unpack_tril(packed, 3), torch.tensor([[a, 0.0, 0.0], [4.0, b, 0.0], [5.0, 6.0, c]]), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_packing_is_undone_by_unpacking(n: int) -> None:
    tril = torch.randn(n, n, dtype=torch.double).tril(-1) + torch.diag(0.1 + torch.rand(n, dtype=torch.double))
    packed = pack_tril(tril)
    assert packed.shape == (n * (n + 1) // 2,)
    torch.testing.assert_close(unpack_tril(packed, n), tril)
    torch.testing.assert_close(pack_tril(unpack_tril(packed, n)), packed)


def test_gradcheck_of_unpack_tril_and_vmap() -> None:
    packed = torch.randn(4, 10, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: unpack_tril(x, 4), packed[0])
    stacked = torch.func.vmap(lambda x: unpack_tril(x, 4))(packed)
    torch.testing.assert_close(stacked, torch.stack([unpack_tril(x, 4) for x in packed]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_safe_sqrt(dtype: torch.dtype) -> None:
    x = torch.tensor([-1e-3, 0.0, 0.25, 4.0], dtype=dtype, requires_grad=True)
    root = safe_sqrt(x)
    torch.testing.assert_close(root, torch.tensor([0.0, 0.0, 0.5, 2.0], dtype=dtype), atol=1e-2, rtol=1e-3)
    root.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.0, 1.0, 0.25], dtype=dtype))


def test_at_least_float32_leaves_full_precision_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(2, dtype=dtype)
        assert at_least_float32(x) is x
    for dtype in (torch.float16, torch.bfloat16):
        assert at_least_float32(torch.zeros(2, dtype=dtype)).dtype == torch.float32


def test_without_autocast() -> None:
    x = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert (x @ x).dtype == torch.float32
    with without_autocast(torch.empty(3, 3, device="meta")):
        assert (x @ x).dtype == torch.float32
