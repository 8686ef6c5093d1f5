"""The root of Gram matrices that may be singular: zero rows, equal rows, more rows than columns, or nothing at all."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn.functional.cost import Size, Way, cheapest
from bnn.functional.linalg import FactorisationError, semidefinite_cholesky

JOINT = [Way.JOINT, Way.JOINT_WITHOUT_COLUMNS]
DTYPES = [torch.float32, torch.double]


def healthy(n: int = 6, d: int = 10) -> Tensor:
    return torch.randn(n, d, dtype=torch.double)


def zero_rows() -> Tensor:
    X = healthy()
    X[[0, 3]] = 0
    return X


def equal_rows() -> Tensor:
    X = healthy()
    X[4] = X[1]
    X[5] = -2 * X[0]
    return X


ROWS = {
    "healthy": healthy,
    "one": lambda: healthy(1, 1),
    "zero rows": zero_rows,
    "equal rows": equal_rows,
    "all equal": lambda: torch.ones(6, 4, dtype=torch.double),
    "more rows than columns": lambda: healthy(12, 3),
    "nearly equal": lambda: healthy(1, 10) + 1e-9 * healthy(6, 10),
    "all zero": lambda: torch.zeros(6, 10, dtype=torch.double),
    "large": lambda: 1e6 * equal_rows(),
    "small": lambda: 1e-6 * equal_rows(),
    "constant image": lambda: torch.ones(64, 9, dtype=torch.double),  # 64 equal patches
}
REGULAR = ("healthy", "one")


@pytest.fixture(params=ROWS)
def rows(request: pytest.FixtureRequest) -> Tensor:
    return ROWS[request.param]()


def tolerance(matrix: Tensor) -> float:
    """A thousand roundings of the largest entry; the jitter in float32 is then below 1.2e-4 of it."""
    return 1e3 * torch.finfo(matrix.dtype).eps * float(matrix.abs().max()) + 1e-15


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_root_multiplies_back(rows: Tensor, dtype: torch.dtype) -> None:
    X = rows.to(dtype)
    G = X @ X.mT
    L = semidefinite_cholesky(G)
    assert L.dtype == dtype
    assert L.isfinite().all()
    assert torch.equal(L, L.tril())
    assert (L @ L.mT - G).abs().max() <= tolerance(G)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_finite(rows: Tensor, dtype: torch.dtype) -> None:
    """With respect to the rows, as a layer needs them; every entry of L carries weight."""
    X = rows.to(dtype).requires_grad_()
    L = semidefinite_cholesky(X @ X.mT)
    (L * torch.randn_like(L)).sum().backward()
    assert X.grad.isfinite().all()


@pytest.mark.parametrize("name", REGULAR)
def test_a_regular_matrix_has_its_cholesky_factor(name: str) -> None:
    X = ROWS[name]().requires_grad_()
    G = X @ X.mT
    ours, torchs = semidefinite_cholesky(G), torch.linalg.cholesky(G)
    torch.testing.assert_close(ours, torchs, atol=1e-12, rtol=1e-12)
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((weight * L).sum(), X, retain_graph=True)[0] for L in (ours, torchs)]
    torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-10)


def test_gradients_by_finite_differences() -> None:
    X = healthy(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: semidefinite_cholesky(X @ X.mT), [X])


def test_zero_and_equal_rows_have_zero_noise_of_their_own() -> None:
    """L N is 0 on zero rows, and equal on equal rows."""
    X = zero_rows()
    L = semidefinite_cholesky(X @ X.mT)
    assert L[[0, 3]].abs().max() < 1e-6
    X = equal_rows()
    L = semidefinite_cholesky(X @ X.mT)
    assert (L[4] - L[1]).abs().max() < 1e-6
    assert (L[5] + 2 * L[0]).abs().max() < 1e-6


def hollow(n: int, d: int) -> Tensor:
    """-1e-12 on the diagonal of a singular Gram matrix: more than rounding, so that the first jitter is not enough."""
    X = healthy(n, d)
    return X @ X.mT - 1e-12 * torch.eye(n, dtype=torch.double)


def test_one_singular_matrix_leaves_the_others_alone() -> None:
    """Batches (2, 3, 6, 6): only the matrix that needs more jitter gets more."""
    X = torch.randn(2, 3, 6, 10, dtype=torch.double)
    G = X @ X.mT
    before = semidefinite_cholesky(G)
    G[1, 0] = hollow(6, 2)
    assert torch.linalg.cholesky_ex(G)[1].nonzero().tolist() == [[1, 0]]
    after = semidefinite_cholesky(G)
    others = [(i, j) for i in range(2) for j in range(3) if (i, j) != (1, 0)]
    for i, j in others:
        torch.testing.assert_close(after[i, j], before[i, j], atol=1e-14, rtol=0)
    assert after.isfinite().all()
    assert (after @ after.mT - G).abs().max() < 1e-9
    assert (after[1, 0] @ after[1, 0].mT - G[1, 0]).abs().max() > 1e-12


def test_gradients_of_a_batch_with_singular_matrices() -> None:
    X = torch.stack([healthy(), zero_rows(), equal_rows(), torch.zeros(6, 10, dtype=torch.double)]).requires_grad_()
    L = semidefinite_cholesky(X @ X.mT)
    L.square().sum().backward()
    assert X.grad.isfinite().all()
    torch.testing.assert_close(X.grad, 2 * X.detach(), atol=1e-6, rtol=1e-6)  # |L|^2 is the trace of X X^T


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_not_a_number_is_an_error(bad: float, batch: tuple[int, ...]) -> None:
    G = torch.eye(4).repeat(*batch, 1, 1)
    G[..., 2, 1] = G[..., 1, 2] = bad
    with pytest.raises(FactorisationError, match="NaN or inf"):
        semidefinite_cholesky(G)


def test_not_a_number_on_the_diagonal_of_one_matrix_is_an_error() -> None:
    G = torch.eye(4).repeat(3, 1, 1)
    G[1, 2, 2] = float("nan")
    with pytest.raises(FactorisationError, match=r"\(3, 4, 4\).*NaN or inf"):
        semidefinite_cholesky(G)


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
def test_an_indefinite_matrix_is_an_error(dtype: torch.dtype) -> None:
    with pytest.raises(FactorisationError, match="not positive semi-definite"):
        semidefinite_cholesky(torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=dtype)))


def test_a_residual_that_is_all_rounding() -> None:
    """M_in > d_in and a small D leave X X^T - T T^T = 1e-8 X X^T, below the rounding of float32, of either sign."""
    net = nn.Sequential(nn.Conv2d(48, 512, 1))
    bnn.bayesianize_(net, "inducing", inducing_rows=64, inducing_cols=64, init_lamda=0.03)
    with torch.no_grad():
        net[0]._d_col.fill_(math.log(math.expm1(1e-4)))
    size = Size(draws=4, inputs=1, rows=16, d_out=512, d_in=49, m_out=64, m_in=64, gram=16**2 * 48, shared=True)
    assert cheapest([Way.DENSE, *JOINT], size) in JOINT
    for _ in range(30):
        assert bnn.draws(net, torch.randn(1, 48, 4, 4), 4).isfinite().all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 3, 3), (2, 0, 0)])
def test_nothing_to_factorise(shape: tuple[int, ...]) -> None:
    assert semidefinite_cholesky(torch.zeros(shape)).shape == shape


def test_singular_matrices_are_no_news() -> None:
    """Zero patches are everyday in images: no warning, unlike a covariance that needs rescue."""
    X = zero_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        semidefinite_cholesky(X @ X.mT)
