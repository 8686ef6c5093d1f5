"""Bayesian linear regression has a closed-form posterior: variational inference must find it where its family holds it.

Y = [X, 1] W^T + noise with known noise sd and W (d_out, d_in) ~ N(0, prior variances): the rows of W are independent a
posteriori, with precision Phi^T Phi / noise^2 + prior precision, Phi = [X, 1]. Vectors and covariances of W are
row-major. Layers are trained on the exact ELBO: the expected log-likelihood needs only the mean and covariance of q(W).
"""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributions, nn

import bnn
from bnn.functional.linalg import pack_tril
from bnn.likelihoods import Gaussian

N, FEATURES, D_OUT = 20, 3, 2
D_IN = FEATURES + 1
NOISE = 0.5


class Problem(NamedTuple):
    """Data, and the exact answer."""

    x: Tensor  # (N, FEATURES)
    y: Tensor  # (N, D_OUT)
    phi: Tensor  # (N, D_IN)
    mean: Tensor  # (D_OUT * D_IN,)
    precision: Tensor  # (D_OUT * D_IN, D_OUT * D_IN)
    log_evidence: Tensor


def make_problem(weight_sd: float, bias_sd: float) -> Problem:
    x = torch.randn(N, FEATURES).double() @ torch.randn(FEATURES, FEATURES).double()  # correlated inputs
    phi = torch.cat([x, torch.ones(N, 1)], 1)
    y = phi @ torch.randn(D_IN, D_OUT).double() + NOISE * torch.randn(N, D_OUT)
    prior_sds = torch.tensor([weight_sd] * FEATURES + [bias_sd], dtype=torch.double)
    row = phi.T @ phi / NOISE**2 + torch.diag(prior_sds**-2)  # the posterior precision of one row of W
    mean = torch.linalg.solve(row, phi.T @ y / NOISE**2).T.flatten()
    covariance_y = NOISE**2 * torch.eye(N) + phi * prior_sds**2 @ phi.T
    marginal = distributions.MultivariateNormal(torch.zeros(N).double(), covariance_y)
    return Problem(x, y, phi, mean, torch.kron(torch.eye(D_OUT).double(), row), marginal.log_prob(y.T).sum())


def moments(layer: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance of q(W), row-major, from the layer's parameters."""
    mean = layer.to_matrix(layer.mean_weights()).flatten()
    if layer.family == "ffg":
        return mean, torch.diag(layer.to_matrix(layer.sds()).flatten() ** 2)
    if layer.family == "fcg":  # the layer's vector is the weight, then the bias
        order = torch.cat([torch.arange(D_OUT * FEATURES).reshape(D_OUT, -1), torch.arange(-D_OUT, 0)[:, None]], 1)
        tril = layer.scale_tril[order.flatten()]
        return mean, tril @ tril.T
    if layer.family == "ktied":
        return mean, torch.diag(layer.to_matrix(layer.sds()).flatten() ** 2)
    if layer.family == "matrixnormal":
        tril = torch.kron(*(one if one.ndim == 2 else torch.diag(one) for one in layer.row_and_col()))
        return mean, tril @ tril.T
    row, col = layer.factors()
    sigma, tril = layer.prior_sd(), layer.q.spread(layer)
    if not layer.options.whitened_u:
        tril = torch.linalg.solve(torch.kron(row.L, col.L), tril)
    tril = sigma * torch.kron(row.A.T, col.A.T) @ tril
    residual = torch.eye(len(mean)) - torch.kron(row.A.T @ row.A, col.A.T @ col.A)
    return mean, tril @ tril.T + (layer.lamda() * sigma) ** 2 * residual


def exact_elbo(layer: Any, problem: Problem) -> Tensor:
    """E_q[log p(Y | W)] - KL[q || p], without sampling."""
    mean, covariance = moments(layer)
    fit = (problem.y - problem.phi @ mean.reshape(D_OUT, D_IN).T).square().sum()
    spread = torch.trace(covariance @ torch.kron(torch.eye(D_OUT).double(), problem.phi.T @ problem.phi))
    constant = N * D_OUT * math.log(2 * math.pi * NOISE**2) / 2
    return -(fit + spread) / (2 * NOISE**2) - constant - bnn.kl_divergence(layer)


def maximise_(layer: nn.Module, problem: Problem) -> None:
    """Trains the layer in place to the maximum of its exact ELBO."""
    optimiser = torch.optim.LBFGS(
        [p for p in layer.parameters() if p.requires_grad],
        max_iter=1000,
        history_size=100,
        tolerance_grad=1e-7,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -exact_elbo(layer, problem)
        loss.backward()
        return loss

    optimiser.step(closure)


def make_layer(family: str, **options: Any) -> Any:
    layer = nn.Linear(FEATURES, D_OUT).double()
    bnn.bayesianize_(layer, family, **options)
    return layer


def fcg() -> tuple[Any, Problem]:
    problem = make_problem(weight_sd=0.7, bias_sd=2.0)
    return make_layer("fcg", init_sd=0.1, prior_weight_sd=0.7, prior_bias_sd=2.0), problem


def ffg() -> tuple[Any, Problem]:
    problem = make_problem(weight_sd=0.7, bias_sd=2.0)
    return make_layer("ffg", init_sd=0.1, prior_weight_sd=0.7, prior_bias_sd=2.0), problem


def ktied() -> tuple[Any, Problem]:
    problem = make_problem(weight_sd=0.7, bias_sd=2.0)
    return make_layer("ktied", init_sd=0.1, prior_weight_sd=0.7, prior_bias_sd=2.0), problem


def diagonal_matrix_normal(covariance: str = "diagonal") -> tuple[Any, Problem]:
    problem = make_problem(weight_sd=0.7, bias_sd=2.0)
    prior = {"prior_weight_sd": 0.7, "prior_bias_sd": 2.0}
    return make_layer("matrixnormal", init_sd=0.1, covariance=covariance, **prior), problem


def matrix_normal() -> tuple[Any, Problem]:
    """The posterior of all outputs, I (x) V, is one."""
    return diagonal_matrix_normal("full")


def inducing(**options: Any) -> tuple[Any, Problem]:
    """M = d: with D = 1e-3 and orthogonal Z, u determines W up to 1e-6 of the prior variance."""
    problem = make_problem(weight_sd=0.7, bias_sd=0.7)
    sizes = {"inducing_rows": D_OUT, "inducing_cols": D_IN}
    layer = make_layer("inducing", q_inducing="full", prior_sd=0.7, init_lamda=0.1, **sizes, **options)
    for z in (layer.z_row, layer.z_col):
        nn.init.orthogonal_(z)
    for parameter in (layer.z_row, layer.z_col, layer._d_row, layer._d_col):
        parameter.requires_grad_(False)
    with torch.no_grad():  # a start nearer to the posterior's sds than 1e-3, for LBFGS
        layer._inducing_scale_tril.copy_(pack_tril(0.1 * torch.eye(D_OUT * D_IN)))
    return layer, problem


def inducing_unwhitened() -> tuple[Any, Problem]:
    return inducing(whitened_u=False)


def assert_relative(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Errors of entries below `tolerance` times the largest entry."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * expected.abs().max().item())


@pytest.mark.parametrize(
    ("make", "tolerance"), [(fcg, 1e-5), (matrix_normal, 1e-4), (inducing, 1e-3), (inducing_unwhitened, 1e-3)]
)
def test_the_exact_posterior_is_recovered(make, tolerance):
    layer, problem = make()
    before = exact_elbo(layer, problem)
    maximise_(layer, problem)
    mean, covariance = (part.detach() for part in moments(layer))
    assert_relative(mean, problem.mean, tolerance)
    assert_relative(covariance, torch.linalg.inv(problem.precision), tolerance)
    reached = exact_elbo(layer, problem).detach()
    assert before < problem.log_evidence - 1  # there was something to learn
    torch.testing.assert_close(reached, problem.log_evidence, rtol=0, atol=tolerance)  # nats
    assert reached < problem.log_evidence + 1e-9  # a bound


@pytest.mark.parametrize("make", [ffg, diagonal_matrix_normal, ktied])
def test_the_mean_field_optimum_is_recovered(make):
    """The sds of all outputs are the same, so that even tied ones hold it."""
    layer, problem = make()
    maximise_(layer, problem)
    mean, covariance = (part.detach() for part in moments(layer))
    assert_relative(mean, problem.mean, 1e-4)
    assert_relative(covariance.diagonal(), 1 / problem.precision.diagonal(), 1e-4)
    posterior = distributions.MultivariateNormal(problem.mean, precision_matrix=problem.precision)
    optimum = distributions.MultivariateNormal(problem.mean, torch.diag(1 / problem.precision.diagonal()))
    gap = distributions.kl_divergence(optimum, posterior)
    assert gap > 0.1  # the posterior is correlated, and mean field cannot be
    torch.testing.assert_close(exact_elbo(layer, problem).detach(), problem.log_evidence - gap, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("make", [fcg, inducing, inducing_unwhitened])
def test_draws_follow_the_exact_posterior(make, at_once):
    """Of W, whose columns the four corners show: one function for the batch (`sampling="weight"`)."""
    layer, problem = make()
    maximise_(layer, problem)
    if make is not fcg:
        bnn.set_sampling_(layer, "weight")
    corners = torch.cat([torch.eye(FEATURES), torch.zeros(1, FEATURES)]).double()
    with torch.no_grad():  # column by column: weight + bias, then bias
        outputs = bnn.draws(layer, corners, 2000) if at_once else torch.stack([layer(corners) for _ in range(2000)])
    W = torch.cat([outputs[:, :-1] - outputs[:, -1:], outputs[:, -1:]], 1).mT.flatten(1)
    covariance = torch.linalg.inv(problem.precision)
    variances = covariance.diagonal()
    assert ((W.mean(0) - problem.mean).abs() < 5 * (variances / len(W)).sqrt()).all()
    error = ((variances[:, None] * variances + covariance.square()) / len(W)).sqrt()  # one standard error
    assert ((W.T.cov() - covariance).abs() < 5 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [fcg, ffg, ktied, matrix_normal, inducing, inducing_unwhitened])
@pytest.mark.parametrize(("trained", "samples"), [(True, 1), (False, 4)])
def test_the_stochastic_elbo_is_unbiased(make, trained, samples):
    layer, problem = make()
    if trained:
        maximise_(layer, problem)
    elbo = bnn.ELBO(layer, num_data=N, likelihood=Gaussian(sd=NOISE, learn=False).double(), samples=samples)
    with torch.no_grad():
        drawn = -N * torch.stack([elbo(problem.x, problem.y).loss for _ in range(1200 // samples)])
        exact = exact_elbo(layer, problem)
    standard_error = drawn.std() / len(drawn) ** 0.5
    assert standard_error < (0.1 if trained else 0.02 * exact.abs())  # so that the next line says something
    assert (drawn.mean() - exact).abs() < 5 * standard_error
