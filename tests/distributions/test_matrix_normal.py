"""The matrix normal and its KL divergences against torch's MultivariateNormal with the dense Kronecker covariance."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal, kl_divergence
from torch.nn.functional import softplus

from bnn.distributions import MatrixNormal
from bnn.distributions.matrix_normal import kron

EVENTS = [(1, 1), (3, 2), (2, 4), (1, 5)]
# batch shapes of loc, row_scale_tril and col_scale_tril
BATCHES = [((), (), ()), ((4,), (4,), (4,)), ((4,), (), ()), ((), (4,), ()), ((), (), (4,)), ((5, 1), (4,), (1, 1))]


@pytest.fixture(autouse=True)
def validated() -> Iterator[None]:
    """torch.compile, in another test, switches the checks of all distributions off."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def tril(raw: Tensor) -> Tensor:
    """A lower-triangular matrix with positive diagonal from any square matrix."""
    return raw.tril(-1) + torch.diag_embed(softplus(raw.diagonal(dim1=-2, dim2=-1)) + 0.1)


def matrix_normal(event, batches=((), (), ()), dtype=torch.float64) -> MatrixNormal:
    n, m = event
    loc, row, col = batches
    return MatrixNormal(
        torch.randn(*loc, n, m, dtype=dtype),
        tril(torch.randn(*row, n, n, dtype=dtype)),
        tril(torch.randn(*col, m, m, dtype=dtype)),
    )


def normal(event, batch=()) -> Normal:
    scale = 0.3 + torch.rand(*batch, *event, dtype=torch.float64)
    return Normal(torch.randn(*batch, *event, dtype=torch.float64), scale)


def multivariate(event, batch=()) -> MultivariateNormal:
    size = math.prod(event)
    scale_tril = tril(torch.randn(*batch, size, size, dtype=torch.float64))
    return MultivariateNormal(torch.randn(*batch, size, dtype=torch.float64), scale_tril=scale_tril)


# What a matrix normal has a KL with: (event, batch) -> distribution.
RELATIVES = {
    "matrix": lambda event, batch: matrix_normal(event, (batch, (), batch)),
    "normal": normal,
    "independent": lambda event, batch: Independent(normal(event, batch), 2),
    "nested": lambda event, batch: Independent(Independent(normal(event, batch), 1), 1),
    "multivariate": multivariate,
}


def dense(d) -> MultivariateNormal:
    """The same distribution by the plain formula: the covariance of the row-major vector, written out."""
    if isinstance(d, Independent):
        return dense(d.base_dist)
    if isinstance(d, MultivariateNormal):
        return d
    if isinstance(d, Normal):
        return MultivariateNormal(d.loc.flatten(-2), torch.diag_embed(d.variance.flatten(-2)))
    row, col = d.row_scale_tril @ d.row_scale_tril.mT, d.col_scale_tril @ d.col_scale_tril.mT
    covariance = torch.einsum("...ik,...jl->...ijkl", row, col).flatten(-4, -3).flatten(-2)
    return MultivariateNormal(d.loc.flatten(-2), covariance)


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# kron


def test_kron_is_torch_kron():
    a, b = torch.randn(3, 2), torch.randn(4, 5)
    assert_equal(kron(a, b), torch.kron(a, b))


def test_kron_broadcasts_batches():
    a, b = torch.randn(6, 1, 3, 2), torch.randn(5, 2, 4)
    product = kron(a, b)
    assert product.shape == (6, 5, 6, 8)
    assert_equal(product[4, 3], torch.kron(a[4, 0], b[3]))


# the distribution


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("event", EVENTS)
def test_log_prob_and_entropy_are_the_dense_ones(event, batches):
    d = matrix_normal(event, batches)
    value = torch.randn(7, *d.batch_shape, *event, dtype=torch.float64)
    assert_equal(d.log_prob(value), dense(d).log_prob(value.flatten(-2)))
    assert_equal(d.entropy(), dense(d).entropy())


@pytest.mark.parametrize("batches", BATCHES)
def test_moments_are_the_dense_ones(batches):
    d = matrix_normal((3, 2), batches)
    variance = dense(d).variance.unflatten(-1, (3, 2))
    assert_equal(d.mean, d.loc)
    assert_equal(d.mode, d.loc)
    assert_equal(d.variance, variance)
    assert_equal(d.stddev, variance.sqrt())
    assert_equal(kron(d.row_covariance_matrix, d.col_covariance_matrix), dense(d).covariance_matrix)


@pytest.mark.parametrize("batches", BATCHES)
def test_to_multivariatenormal_is_row_major(batches):
    d = matrix_normal((3, 2), batches)
    flat = d.to_multivariatenormal()
    assert flat.batch_shape == d.batch_shape
    assert_equal(flat.loc, d.loc.reshape(*d.batch_shape, 6))
    assert_equal(flat.scale_tril, kron(d.row_scale_tril, d.col_scale_tril))
    assert_equal(flat.covariance_matrix, dense(d).covariance_matrix)


def test_parameters_read_with_the_batch_shape():
    d = matrix_normal((3, 2), ((5, 1), (4,), ()))
    assert d.batch_shape == (5, 4)
    assert d.event_shape == (3, 2)
    assert d.loc.shape == d.mean.shape == d.variance.shape == (5, 4, 3, 2)
    assert d.row_scale_tril.shape == d.row_covariance_matrix.shape == (5, 4, 3, 3)
    assert d.col_scale_tril.shape == d.col_covariance_matrix.shape == (5, 4, 2, 2)
    assert d.entropy().shape == (5, 4)
    assert repr(d).startswith("MatrixNormal(loc: torch.Size([5, 4, 3, 2]), row_scale_tril: ")


@pytest.mark.parametrize(
    ("batches", "value_batch", "expected"),
    [
        (((), (), ()), (), ()),
        (((), (), ()), (6, 7), (6, 7)),
        (((4,), (), (4,)), (), (4,)),
        (((4,), (), (4,)), (7, 1), (7, 4)),
        (((5, 1), (4,), ()), (4,), (5, 4)),
    ],
)
def test_log_prob_broadcasts(batches, value_batch, expected):
    d = matrix_normal((3, 2), batches)
    value = torch.randn(*value_batch, 3, 2, dtype=torch.float64)
    log_prob = d.log_prob(value)
    assert log_prob.shape == expected
    full = value.expand(*expected, 3, 2).flatten(-2)
    assert_equal(log_prob, dense(d).log_prob(full))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sample_shape", [(), (6,), (6, 7)])
@pytest.mark.parametrize("batches", BATCHES)
def test_rsample_shape_and_dtype(batches, sample_shape, dtype):
    d = matrix_normal((3, 2), batches, dtype)
    draw = d.rsample(sample_shape)
    assert draw.shape == (*sample_shape, *d.batch_shape, 3, 2)
    assert draw.dtype == d.log_prob(draw).dtype == d.entropy().dtype == kl_divergence(d, d).dtype == dtype


def test_rsample_moments():
    """200,000 draws; the largest of 42 entries stays within 5 standard errors."""
    draws, d = 200_000, matrix_normal((3, 2))
    x = d.sample((draws,)).flatten(-2)
    covariance = dense(d).covariance_matrix
    variance = covariance.diagonal()
    mean_error = (x.mean(0) - d.loc.flatten()).abs() / (variance / draws).sqrt()
    # Var[(x_i - mu_i)(x_j - mu_j)] = S_ii S_jj + S_ij^2
    covariance_error = (x.T.cov() - covariance).abs() / (
        (torch.outer(variance, variance) + covariance**2) / draws
    ).sqrt()
    assert mean_error.max() < 5
    assert covariance_error.max() < 5


def test_rsample_is_loc_plus_the_scaled_noise():
    d = matrix_normal((3, 2), ((4,), (), (4,)))
    torch.manual_seed(1)
    x = d.rsample((5,))
    torch.manual_seed(1)
    noise = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    assert_equal(x, d.loc + d.row_scale_tril @ noise @ d.col_scale_tril.mT)


def test_rsample_takes_a_generator():
    d = matrix_normal((3, 2))
    first, second = (d.rsample((5,), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert_equal(first, second, 0)
    assert not torch.equal(first, d.rsample((5,)))


def test_gradient_through_rsample():
    """E|X|^2 = |loc|^2 + |L_r|^2 |L_c|^2 is known, and so is its gradient; 100,000 draws, within 2 % of its norm."""
    loc, row, col = torch.randn(3, 2), tril(torch.randn(3, 3)), tril(torch.randn(2, 2))
    parameters = [t.double().requires_grad_() for t in (loc, row, col)]
    d = MatrixNormal(*parameters)
    estimate = torch.autograd.grad(d.rsample((100_000,)).square().sum((-2, -1)).mean(), parameters)
    row_norm, col_norm = d.row_scale_tril.square().sum(), d.col_scale_tril.square().sum()
    exact = torch.autograd.grad(d.loc.square().sum() + row_norm * col_norm, parameters)
    # The draw also moves with entries above the diagonal, which are no parameters.
    for value, expected in zip(estimate, exact, strict=True):
        lower = value.tril() if value.shape[0] == value.shape[1] else value
        assert (lower - expected).norm() < 0.02 * expected.norm()


def test_sample_has_no_gradient():
    d = MatrixNormal(torch.zeros(3, 2, requires_grad=True), torch.eye(3), torch.eye(2))
    assert d.has_rsample
    assert d.rsample().requires_grad
    assert not d.sample().requires_grad


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradcheck_of_log_prob_entropy_and_rsample(batch):
    raw = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in [(*batch, 3, 2), (3, 3), (*batch, 2, 2)]]
    value = torch.randn(4, *batch, 3, 2, dtype=torch.float64, requires_grad=True)

    def outputs(loc, row, col, value):
        d = MatrixNormal(loc, tril(row), tril(col))
        return d.log_prob(value), d.entropy(), d.rsample(generator=torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(outputs, (*raw, value))


def test_expand_keeps_the_distribution():
    d = matrix_normal((3, 2), ((4, 1), (), (5,)))
    wide = d.expand((6, 4, 5))
    assert isinstance(wide, MatrixNormal)
    assert wide.batch_shape == (6, 4, 5)
    assert wide.rsample((7,)).shape == (7, 6, 4, 5, 3, 2)
    assert wide.loc.data_ptr() == d.loc.data_ptr()
    value = torch.randn(6, 4, 5, 3, 2, dtype=torch.float64)
    assert_equal(wide.log_prob(value), d.log_prob(value))
    assert_equal(wide.entropy(), d.entropy().expand(6, 4, 5))
    assert_equal(wide.variance, d.variance.expand(6, 4, 5, 3, 2))
    assert wide.to_multivariatenormal().batch_shape == (6, 4, 5)


def test_expand_keeps_validation():
    parameters = torch.zeros(3, 2), torch.eye(3), torch.eye(2)
    value = torch.full((3, 2), torch.nan)
    assert MatrixNormal(*parameters, validate_args=False).expand((4,)).log_prob(value).isnan().all()
    with pytest.raises(ValueError, match="within the support"):
        MatrixNormal(*parameters, validate_args=True).expand((4,)).log_prob(value)


def test_expand_refuses_a_shape_it_does_not_broadcast_to():
    d = matrix_normal((3, 2), ((4,), (), ()))
    with pytest.raises(RuntimeError, match="expanded size"):
        d.expand((5,))


def test_independent_sums_a_batch_dimension():
    d = matrix_normal((3, 2), ((4,), (), ()))
    value = d.sample()
    assert_equal(Independent(d, 1).log_prob(value), d.log_prob(value).sum())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_copies_behave_the_same(duplicate, requires_grad):
    parameters = torch.randn(4, 3, 2), tril(torch.randn(3, 3)), tril(torch.randn(2, 2))
    d = MatrixNormal(*(p.requires_grad_(requires_grad) for p in parameters))
    value = d.sample()
    expected = d.log_prob(value)  # use before the copy must leave nothing behind
    d.variance, d.row_covariance_matrix, d.to_multivariatenormal()
    other = duplicate(d)
    assert_equal(other.log_prob(value), expected, 0)
    assert other.loc.requires_grad == requires_grad
    assert_equal(kl_divergence(other, d), torch.zeros(4), 1e-5)


# validation


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2,), (3, 3), (2, 2)), r"expected loc \(..., n, m\)"),
        (((3, 2), (2, 2), (3, 3)), r"got loc \(3, 2\), row_scale_tril \(2, 2\)"),
        (((3, 2), (3, 3), (3, 3)), r"col_scale_tril \(3, 3\)"),
        (((3, 2), (3,), (2, 2)), r"row_scale_tril \(3,\)"),
        (((3, 2), (3, 2), (2, 2)), r"row_scale_tril \(3, 2\)"),
        (((4, 3, 2), (5, 3, 3), (2, 2)), "batch dimensions that broadcast"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    parameters = [torch.ones(s) for s in shapes]
    with pytest.raises(ValueError, match=message):
        MatrixNormal(*parameters, validate_args=False)


@pytest.mark.parametrize(
    ("index", "bad", "message"),
    [
        (0, torch.full((3, 2), torch.nan), "parameter loc"),
        (1, -torch.eye(3), "parameter row_scale_tril"),
        (1, torch.ones(3, 3), "parameter row_scale_tril"),
        (1, torch.zeros(3, 3), "parameter row_scale_tril"),
        (2, torch.ones(2, 2), r"parameter col_scale_tril .* satisfy the constraint LowerCholesky"),
        (2, torch.full((2, 2), torch.nan), "parameter col_scale_tril"),
        (1, torch.eye(3).double(), "one floating dtype"),
        (2, torch.eye(2).long(), "one floating dtype"),
    ],
)
def test_values_that_do_not_fit(index, bad, message):
    parameters = [torch.zeros(3, 2), torch.eye(3), torch.eye(2)]
    parameters[index] = bad
    with pytest.raises(ValueError, match=message):
        MatrixNormal(*parameters)


def test_integers_are_refused():
    parameters = [torch.ones(1, 1, dtype=torch.long)] * 3
    with pytest.raises(ValueError, match="one floating dtype"):
        MatrixNormal(*parameters)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, 3), "must match event_shape"),
        (torch.zeros(6), "must match event_shape"),
        (torch.zeros(5, 3, 2), "not broadcastable"),
        (torch.full((3, 2), torch.nan), "within the support"),
        (0.0, "must be a Tensor"),
    ],
)
def test_log_prob_refuses_values_that_do_not_fit(value, message):
    d = matrix_normal((3, 2), ((4,), (), ()), torch.float32)
    with pytest.raises(ValueError, match=message):
        d.log_prob(value)


# KL divergences


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("relative", RELATIVES)
def test_kl_is_the_dense_one_both_ways(relative, event):
    for batches in [((), ()), ((4,), (4,)), ((4,), ()), ((), (4,)), ((5, 1), (4,))]:
        torch.manual_seed(0)
        p = matrix_normal(event, (batches[0], batches[0], ()))
        q = RELATIVES[relative](event, batches[1])
        batch_shape = torch.broadcast_shapes(*batches)
        size = math.prod(event)
        dense_p, dense_q = dense(p).expand(batch_shape), dense(q).expand(batch_shape)
        forward, backward = kl_divergence(p, q), kl_divergence(q, p)
        assert forward.shape == backward.shape == batch_shape
        assert_equal(forward, dense_kl(dense_p, dense_q, size))
        assert_equal(backward, dense_kl(dense_q, dense_p, size))


def dense_kl(p: MultivariateNormal, q: MultivariateNormal, size: int) -> Tensor:
    """1/2 [ tr(S_q^-1 S_p) + d^T S_q^-1 d - N + log|S_q| - log|S_p| ], from covariances alone."""
    covariance_p, covariance_q = p.covariance_matrix, q.covariance_matrix
    trace = torch.linalg.solve(covariance_q, covariance_p).diagonal(dim1=-2, dim2=-1).sum(-1)
    d = (p.loc - q.loc).unsqueeze(-1)
    distance = (d.mT @ torch.linalg.solve(covariance_q, d)).squeeze(-1).squeeze(-1)
    return 0.5 * (trace + distance - size + covariance_q.logdet() - covariance_p.logdet())


@pytest.mark.parametrize("relative", RELATIVES)
def test_kl_against_monte_carlo(relative):
    """100,000 draws of E_p[log p - log q]; within 5 standard errors."""
    p, q = matrix_normal((3, 2)), RELATIVES[relative]((3, 2), ())
    x = p.sample((100_000,))
    at_q = q.log_prob(x.flatten(-2) if relative == "multivariate" else x)
    ratio = p.log_prob(x) - (at_q.sum((-2, -1)) if relative == "normal" else at_q)
    assert (ratio.mean() - kl_divergence(p, q)).abs() < 5 * ratio.std() / math.sqrt(len(x))


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("event", EVENTS)
def test_kl_to_itself_is_zero(event, batches):
    p = matrix_normal(event, batches)
    zero = torch.zeros(p.batch_shape, dtype=torch.float64)
    assert_equal(kl_divergence(p, p), zero)
    assert_equal(kl_divergence(p, p.to_multivariatenormal()), zero)
    assert_equal(kl_divergence(p.to_multivariatenormal(), p), zero)


def test_kl_of_independent_entries_is_torchs():
    n, m, q = 3, 2, normal((3, 2))
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), torch.tensor([0.3, 1.5], dtype=torch.float64)
    matrix = MatrixNormal(torch.randn(n, m, dtype=torch.float64), scale[0].diag(), scale[1].diag())
    entries = Normal(matrix.loc, torch.outer(*scale))
    assert_equal(kl_divergence(matrix, q), kl_divergence(entries, q).sum())
    assert_equal(kl_divergence(q, matrix), kl_divergence(q, entries).sum())


@pytest.mark.parametrize("relative", RELATIVES)
def test_gradcheck_of_kl(relative):
    raw = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in [(2, 3, 2), (3, 3), (2, 2, 2)]]
    q = RELATIVES[relative]((3, 2), (2,))

    def divergences(loc, row, col):
        p = MatrixNormal(loc, tril(row), tril(col))
        return kl_divergence(p, q), kl_divergence(q, p)

    assert torch.autograd.gradcheck(divergences, raw)


@pytest.mark.parametrize(
    "other_parameters",
    [
        lambda loc, scale: Normal(loc, softplus(scale)),
        lambda loc, scale: Independent(Normal(loc, softplus(scale)), 2),
        lambda loc, scale: MultivariateNormal(loc.flatten(-2), scale_tril=tril(torch.outer(*[scale.flatten()] * 2))),
    ],
)
def test_gradcheck_of_kl_in_the_others_parameters(other_parameters):
    matrix = matrix_normal((3, 2))
    loc, scale = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def divergences(loc, scale):
        other = other_parameters(loc, scale)
        return kl_divergence(matrix, other), kl_divergence(other, matrix)

    assert torch.autograd.gradcheck(divergences, (loc, scale))


@pytest.mark.parametrize(
    "other",
    [
        matrix_normal((2, 3)),
        normal((2, 3)),
        Normal(0.0, 1.0),
        Independent(normal((3, 2)), 1),
        Independent(normal((3, 2), (4,)), 3),
        multivariate((3, 3)),
    ],
    ids=lambda d: f"{type(d).__name__}{tuple(d.batch_shape + d.event_shape)}",
)
def test_kl_refuses_other_shapes(other):
    matrix = matrix_normal((3, 2))
    with pytest.raises(ValueError, match=r"expected (p|q) over"):
        kl_divergence(matrix, other)
    with pytest.raises(ValueError, match=r"expected (p|q) over"):
        kl_divergence(other, matrix)


def test_kl_refuses_other_independent_distributions():
    matrix = matrix_normal((3, 2))
    other = Independent(Laplace(torch.zeros(3, 2), torch.ones(3, 2)), 2)
    with pytest.raises(NotImplementedError, match="got Laplace"):
        kl_divergence(matrix, other)
    with pytest.raises(NotImplementedError, match="got Laplace"):
        kl_divergence(other, matrix)


def test_float32_stays_close_to_float64():
    p, q = matrix_normal((6, 5)), matrix_normal((6, 5))
    p32, q32 = (MatrixNormal(d.loc.float(), d.row_scale_tril.float(), d.col_scale_tril.float()) for d in (p, q))
    value = p.sample((7,))
    torch.testing.assert_close(p32.log_prob(value.float()).double(), p.log_prob(value), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(kl_divergence(p32, q32).double(), kl_divergence(p, q), rtol=1e-3, atol=1e-3)
