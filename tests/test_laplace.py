"""`bnn.laplace_` against dense Gauss-Newton matrices and Bayesian linear regression; what it takes and refuses."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn._conversion import curvature
from bnn._conversion.posterior import before
from bnn.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian

DOUBLE = torch.double


# ---- oracles ---------------------------------------------------------------------------------------------------------


def covariance(layer: Any) -> Tensor:
    """Cov[vec W] of a layer with a diagonal q(U), columns stacked, lamda aside."""
    own, sd = layer.posterior(), layer.q.spread(layer).detach()
    M = torch.kron(own.col.A.mT.contiguous(), own.row.A.mT.contiguous())
    M = M.detach()
    return layer.prior_sd() ** 2 * M @ torch.diag(sd.mT.flatten().square()) @ M.mT


def regression(n: int = 60, d_in: int = 5, d_out: int = 3) -> tuple[Tensor, Tensor]:
    X = torch.randn(n, d_in, dtype=DOUBLE)
    return X, X @ torch.randn(d_in, d_out, dtype=DOUBLE) + 0.3 * torch.randn(n, d_out, dtype=DOUBLE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_data", [None, 600])
def test_linear_regression_is_exact(bias: bool, num_data: int | None) -> None:
    X, Y = regression()
    ones = torch.cat([X, torch.ones(len(X), 1, dtype=DOUBLE)], 1) if bias else X
    noise = Gaussian(0.3, learn=False)
    s, tau, times = noise.sd().item(), 0.7, 1 if num_data is None else num_data / len(X)
    precision = torch.kron(times * ones.mT @ ones / s**2, torch.eye(3, dtype=DOUBLE))
    precision += tau * torch.eye(len(precision), dtype=DOUBLE)
    net = nn.Linear(5, 3, bias=bias, dtype=DOUBLE)
    weight = net.weight.detach().clone()
    bnn.laplace_(net, (X, Y), prior_precision=tau, likelihood=noise, labels="exact", num_data=num_data)
    expected = torch.linalg.inv(precision)
    assert torch.allclose(covariance(net), expected, atol=1e-12 * float(expected.abs().max()), rtol=1e-9)
    assert torch.allclose(net.weight, weight, atol=1e-12)


def test_evidence_is_that_of_the_dense_gaussian() -> None:
    """At the mode, as a trained network is."""
    X, Y = regression()
    noise, tau = Gaussian(0.3, learn=False), 0.7
    s = noise.sd().item()
    net = nn.Linear(5, 3, bias=False, dtype=DOUBLE)
    mode = torch.linalg.solve(X.mT @ X / s**2 + tau * torch.eye(5, dtype=DOUBLE), X.mT @ Y / s**2)
    net.weight.data = mode.mT.clone()
    found = bnn.laplace_(net, (X, Y), prior_precision=tau, likelihood=noise, labels="exact")
    marginal = X @ X.mT / tau + s**2 * torch.eye(len(X), dtype=DOUBLE)
    dense = torch.distributions.MultivariateNormal(torch.zeros(len(X), dtype=DOUBLE), marginal)
    assert math.isclose(found.log_evidence, float(dense.log_prob(Y.mT).sum()), rel_tol=1e-9)


def mean_outputs(net: nn.Sequential, layer: Any, x: Tensor, u: Tensor) -> Tensor:
    """The network at its mean, with another u in one layer."""
    was = before(layer)
    W = was.sigma * was.row.A.mT @ u @ was.col.A
    for module in net:
        if module is layer:
            x = layer.run(x, *(layer.from_split(W) if layer.split else layer.from_matrix(W)))
        elif hasattr(module, "mean_weights"):
            x = module.run(x, *module.mean_weights())
        else:
            x = torch.relu(x) if isinstance(module, nn.ReLU) else module(x)
    return x


def dense_gauss_newton(net: nn.Sequential, layer: Any, x: Tensor) -> Tensor:
    """sum over inputs of J^T (diag p - p p^T) J over vec u, columns stacked."""
    u = before(layer).mean
    J = torch.autograd.functional.jacobian(lambda one: mean_outputs(net, layer, x, one), u)
    J = J.transpose(-1, -2).flatten(2)  # (N, C, M_in M_out)
    p = mean_outputs(net, layer, x, u).softmax(1)
    return torch.einsum("nca,ncd,ndb->ab", J, torch.diag_embed(p) - p[:, :, None] * p[:, None], J).detach()


def in_old_basis(was: Any, layer: Any) -> Tensor:
    """The rotation Q (M_in M_out, M_in M_out) of a layer's new u, from A' = Q^T A; needs M <= d."""
    now = before(layer)
    pairs = ((was.row.A, now.row.A), (was.col.A, now.col.A))
    out, into = (torch.linalg.lstsq(old.mT, new.mT).solution for old, new in pairs)
    return torch.kron(into, out)


def conv_net(**options: Any) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(54, 3),
    ).double()
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4, **options)
    return net


IMAGES, LABELS = torch.Size([80, 2, 6, 6]), 3


@pytest.mark.parametrize("keep", [True, False], ids=["rows kept", "second pass"])
@pytest.mark.parametrize("layer", [0, 2, 5])
@pytest.mark.parametrize("kernel", ["paper", "split"])
def test_curvature_is_the_diagonal_of_the_gauss_newton_matrix(
    kernel: str, layer: int, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the basis that was chosen the diagonal is exact; what is off it makes the error of the approximation."""
    if not keep:
        monkeypatch.setattr(curvature, "BYTES", 0)
    net, x = conv_net(kernel=kernel), torch.randn(IMAGES, dtype=DOUBLE)
    H, was = dense_gauss_newton(net, net[layer], x), before(net[layer])
    labels = torch.randint(LABELS, (len(x),))
    bnn.laplace_(net, (x, labels), layers=str(layer), prior_precision=1.0, labels="exact", batch_size=30)
    Q, sd = in_old_basis(was, net[layer]), net[layer].q.spread(net[layer]).mT.flatten()
    assert torch.allclose((Q.mT @ H @ Q).diagonal(), sd**-2 - 1, rtol=1e-6, atol=1e-8 * float(H.diagonal().max()))
    zero, eye = torch.zeros(len(H), dtype=DOUBLE), torch.eye(len(H), dtype=DOUBLE)
    q = torch.distributions.MultivariateNormal(zero, Q @ torch.diag(sd.square()) @ Q.mT)
    dense = torch.distributions.MultivariateNormal(zero, precision_matrix=H + eye)
    assert torch.distributions.kl_divergence(q, dense) / len(H) < 0.02  # nats per entry of u


def test_sampled_labels_are_exact_in_the_mean() -> None:
    net, x = conv_net(), torch.randn(IMAGES, dtype=DOUBLE)
    data = (x.repeat(40, 1, 1, 1), torch.zeros(40 * len(x), dtype=torch.long))
    sds = []
    for labels in ("exact", "sampled"):
        one = copy.deepcopy(net)
        found = bnn.laplace_(one, data, layers="5", prior_precision=1.0, labels=labels, num_data=len(x))
        sds.append((covariance(one[5]).diagonal(), found))
    assert torch.allclose(sds[0][0], sds[1][0], rtol=0.1)  # 3,200 labels


@pytest.mark.parametrize(
    ("likelihood", "shape"),
    [
        (Categorical(), (4, 3)),
        (Categorical(), (4, 3, 5)),
        (Bernoulli(), (4, 3)),
        (Gaussian(0.7), (4, 3)),
        (Gaussian(0.7), (4,)),
        (HeteroscedasticGaussian(), (4, 6)),
        (HeteroscedasticGaussian(), (4, 4, 3)),
    ],
)
def test_scores_have_the_fisher_information(likelihood: Any, shape: tuple[int, ...]) -> None:
    """The mean outer product of sampled scores, and the sum over exact ones, for every datum; 20,000 draws."""
    output, draws = torch.randn(shape, dtype=DOUBLE), 20_000
    generator = torch.Generator().manual_seed(0)
    repeated = output.repeat(draws, *[1] * (len(shape) - 1))
    sampled = likelihood.sampled_score(repeated, generator).reshape(draws, len(output), -1)
    fisher = torch.einsum("kna,knb->nab", sampled, sampled) / draws
    exact = (
        sum(torch.einsum("kna,knb->nab", one, one) for one in _scores(likelihood, repeated, generator, shape)) / draws
    )
    assert torch.allclose(fisher, exact, atol=0.05 * float(exact.abs().max()))
    assert torch.allclose(sampled.mean(0), torch.zeros_like(sampled[0]), atol=0.05 * float(exact.abs().max().sqrt()))


def _scores(likelihood: Any, output: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> list[Tensor]:
    return [one.reshape(-1, shape[0], math.prod(shape[1:])) for one in likelihood.scores(output, generator)]


def test_exact_scores_of_classes_are_exact() -> None:
    output = torch.randn(5, 4, dtype=DOUBLE)
    p = output.softmax(1)
    found = sum(one[:, :, None] * one[:, None] for one in Categorical().scores(output))
    assert torch.allclose(found, torch.diag_embed(p) - p[:, :, None] * p[:, None])


# ---- what it takes ---------------------------------------------------------------------------------------------------


def mlp(d_in: int = 4, d_out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d_in, 16), nn.ReLU(), nn.Linear(16, d_out))


def classes(n: int = 120) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


def test_a_plain_classifier_keeps_its_function_and_is_less_sure_far_away() -> None:
    net, data = mlp(), classes()
    x = torch.randn(7, 4)
    expected = net(x).detach()
    found = bnn.laplace_(net, data)
    assert torch.allclose(bnn.draws(net, x, samples=0)[0], expected, atol=1e-5)
    assert list(found.prior_precision) == ["2"]
    assert found.inputs == 120
    assert type(net[0]) is nn.Linear
    assert net[2].options.max_lamda == 0
    assert bnn.parameter_count(net) == 4 * 16 + 16 + 3 * 3 + 17 * 17 + 2 * 3 * 17 + 3 + 17
    near, far = bnn.predict(net, data[0], samples=200), bnn.predict(net, 10 * data[0], samples=200)
    assert far.epistemic.mean() > near.epistemic.mean() > 0


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_types(kind: torch.dtype) -> None:
    net, (x, y) = mlp().to(kind), classes()
    expected = net(x.to(kind)).detach()
    bnn.laplace_(net, (x.to(kind), y))
    assert {one.dtype for one in net.parameters()} == {kind}
    tolerance = {torch.bfloat16: 0.05, torch.float32: 1e-5, torch.float64: 1e-12}[kind]
    assert torch.allclose(bnn.draws(net, x.to(kind), samples=0)[0], expected, atol=tolerance)


def test_noise_of_a_plain_regressor_is_fitted() -> None:
    X, Y = regression(400)
    net = nn.Linear(5, 3, dtype=DOUBLE)
    solution = torch.linalg.lstsq(torch.cat([X, torch.ones(len(X), 1, dtype=DOUBLE)], 1), Y).solution
    net.weight.data, net.bias.data = solution[:-1].mT.clone(), solution[-1].clone()
    found = bnn.laplace_(net, (X, Y))
    assert abs(found.likelihood.sd().item() - 0.3) < 0.02
    prediction = bnn.predict(net, X, samples=500, likelihood=found.likelihood)
    expected = 0.09 * 6 / 400  # the mean of x^T (X^T X)^-1 x is p / n
    assert abs(float(prediction.epistemic.mean()) / expected - 1) < 0.1


def test_given_noise_is_kept() -> None:
    X, Y = regression()
    given = Gaussian(0.5)
    found = bnn.laplace_(nn.Linear(5, 3, dtype=DOUBLE), (X, Y), likelihood=given)
    assert found.likelihood is given
    assert math.isclose(given.sd().item(), 0.5, rel_tol=1e-6)


def test_predicted_noise() -> None:
    X, Y = regression()
    net = nn.Linear(5, 6, dtype=DOUBLE)
    bnn.laplace_(net, (X, Y), likelihood="heteroscedastic")
    assert bnn.predict(net, X, likelihood="heteroscedastic").epistemic.min() > 0


class Segmenter(nn.Module):
    """Classes at every position, from a 1 x 1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def test_positions_that_are_ignored_add_no_curvature() -> None:
    net, x = Segmenter().double(), torch.randn(30, 1, 5, 5, dtype=DOUBLE)
    sizes = []
    for ignored in (0, 3, 5):
        y, one = torch.randint(3, (30, 5, 5)), copy.deepcopy(net)
        y[:, :, 5 - ignored :] = -100
        bnn.laplace_(one, (x, y), prior_precision=1.0, labels="exact", generator=torch.Generator().manual_seed(0))
        sizes.append(float(covariance(one.head).diagonal().sum()))
    prior = 3 * 9  # weights and biases with variance 1
    assert sizes[0] < sizes[1] < sizes[2]
    assert math.isclose(sizes[2], prior, rel_tol=1e-6)


def test_rows_of_a_head_at_every_position_are_independent() -> None:
    """Labels of positions are, so that the Gauss-Newton matrix is the sum over positions: 16 of each of 300 inputs."""
    x = torch.randn(300, 1, 4, 4, dtype=DOUBLE)
    net, flat = nn.Conv2d(1, 3, 1, dtype=DOUBLE), nn.Conv2d(1, 3, 1, dtype=DOUBLE)
    flat.load_state_dict(net.state_dict())
    generator = torch.Generator().manual_seed(0)
    bnn.laplace_(net, (x, torch.zeros(300, 4, 4, dtype=torch.long)), "last", 1.0, labels="exact", generator=generator)
    pixels = x.reshape(-1, 1, 1, 1)
    bnn.laplace_(flat, (pixels, torch.zeros(len(pixels), 1, 1, dtype=torch.long)), "last", 1.0, labels="exact")
    assert torch.allclose(covariance(net).diagonal(), covariance(flat).diagonal(), rtol=0.2)


def test_sequences_and_layers_whose_inputs_are_not_those_of_the_network() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.head = nn.Linear(4, 6), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:  # (N, 2, 4)
            return self.head(self.each(x.flatten(0, 1)).relu().reshape(len(x), -1))

    net = Windows()
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3)
    found = bnn.laplace_(net, (torch.randn(40, 2, 4), torch.randint(3, (40,))), layers="all")
    assert set(found.prior_precision) == {"each", "head"}
    sequence = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Flatten(0, 1))
    with pytest.raises(ValueError, match="target"):
        bnn.laplace_(sequence, (torch.randn(10, 5, 4), torch.randint(3, (10, 5))))


def test_ensembles_member_by_member() -> None:
    ensemble, data = bnn.Ensemble(mlp(), members=2), classes()
    alone = copy.deepcopy(ensemble.members[1])
    generator = torch.Generator().manual_seed(0)
    found = bnn.laplace_(ensemble, data, labels="exact", generator=generator)
    one = bnn.laplace_(alone, data, labels="exact")
    assert list(found.prior_precision) == ["members.0.2", "members.1.2"]
    assert math.isclose(found.prior_precision["members.1.2"], one.prior_precision["2"], rel_tol=1e-5)
    assert bnn.predict(ensemble, data[0]).probs.shape == (120, 3)
    regressors = bnn.Ensemble(mlp(d_out=1), members=2)
    noise = bnn.laplace_(regressors, (data[0], torch.randn(120, 1))).likelihood
    assert isinstance(noise, Gaussian)


def test_frozen_layers_and_modes() -> None:
    net, data = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)), classes()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    net[3].requires_grad_(False)
    net.train()
    statistics = net[1].running_mean.clone()
    bnn.laplace_(net, data)
    assert net.training
    assert net[2].training
    assert torch.equal(net[1].running_mean, statistics)
    assert not any(one.requires_grad for one in [*net[0].parameters(), *net[3].parameters()])
    assert all(one.requires_grad for one in net[1].parameters())


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
@pytest.mark.parametrize("whitened", [True, False])
def test_every_posterior_becomes_diagonal_and_whitened(q: str, whitened: bool) -> None:
    net, data = mlp(), classes()
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, q_inducing=q, whitened_u=whitened)
    before_ = bnn.draws(net, data[0], samples=0)
    bnn.laplace_(net, data, layers="all")
    assert torch.allclose(bnn.draws(net, data[0], samples=0), before_, atol=1e-4)
    for layer in (net[0], net[2]):
        assert layer.q.name == "diagonal"
        assert layer.options.whitened_u
        assert layer.options.q_inducing == "diagonal"
        assert math.isfinite(layer.kl_divergence().item())


def test_the_prior_precision_is_folded_into_the_layer() -> None:
    """W, its noise given U, and the KL of a posterior that equals the prior do not depend on tau."""
    net = mlp()
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, init_lamda=0.1, max_lamda=0.2)
    one, other, data = copy.deepcopy(net), copy.deepcopy(net), classes()
    for copied, tau in ((one, 1.0), (other, 4.0)):
        bnn.laplace_(copied, data, layers="2", prior_precision=tau, labels="exact")
    assert math.isclose(other[2].prior_sd(), one[2].prior_sd() / 2)
    assert math.isclose(other[2].lamda().item(), 2 * one[2].lamda().item(), rel_tol=1e-4)
    assert math.isclose(other[2].options.max_lamda, 0.4)
    assert torch.allclose(one[2].weight, other[2].weight, atol=1e-5)
    curvatures = [layer.q.spread(layer) ** -2 for layer in (one[2], other[2])]
    assert torch.allclose(curvatures[0] - 1, 4 * curvatures[1] - 4, atol=1e-2, rtol=1e-3)


def losses_by_hand(
    net: nn.Module, data: Any, held_out: Any, precisions: Sequence[float], calibrated: bool = False
) -> list[Tensor]:
    """The NLL of every held-out input under each precision: the draws of `laplace_(generator=_seeded(), samples=10)`,
    which has one batch of all inputs, seeded by the first number of the generator."""
    number = int(torch.randint(2**62, (), generator=_seeded()))
    losses = []
    for tau in precisions:
        one = copy.deepcopy(net)
        bnn.laplace_(one, data, prior_precision=tau)
        h = one.eval()[:2](held_out[0])  # the last layer draws alone, on what all precisions share
        logits = bnn.draws(one[2], h, samples=10, generator=torch.Generator().manual_seed(number))
        nlls = partial(_nlls, logits.detach().double(), held_out[1])
        best = min(torch.logspace(-1, 1, 401).tolist(), key=lambda T: nlls(T).mean().item()) if calibrated else 1.0
        losses.append(nlls(best))
    return losses


def _nlls(logits: Tensor, y: Tensor, T: float) -> Tensor:
    return -(logits / T).softmax(-1).mean(0).log().gather(1, y[:, None])[:, 0]


def sure(*sizes: int, times: float = 2) -> list[Any]:
    """A network that is so many times too sure of itself, which wide posteriors mend and so does a temperature, and
    data."""
    net = mlp()
    net[2].weight.data *= 6 * times
    x = [torch.randn(n, 4) for n in sizes]
    with torch.no_grad():
        labels = [torch.distributions.Categorical(logits=net(one) / times).sample() for one in x]
    return [net, *zip(x, labels, strict=True)]


def chosen_by_hand(losses: list[Tensor]) -> int:
    best = min(losses, key=torch.mean)
    errors = [(loss - best).std() / len(loss) ** 0.5 for loss in losses]
    about = [(loss - best).mean() <= max(error, 0.01 * best.mean()) for loss, error in zip(losses, errors, strict=True)]
    assert about.index(True) < [loss is best for loss in losses].index(True)  # wider than the best: the rule decides
    return about.index(True)


@pytest.mark.filterwarnings("ignore:Laplace's approximation is too wide")
@pytest.mark.parametrize("calibrated", [False, True])
def test_validation_chooses_the_widest_posterior_that_costs_nothing(calibrated: bool) -> None:
    torch.manual_seed(1)
    net, data, held_out = sure(60, 400)
    expected = chosen_by_hand(losses_by_hand(net, data, held_out, bnn.laplace.GRID, calibrated))
    options: dict[str, Any] = {"validation": held_out, "samples": 10, "generator": _seeded(), "calibrated": calibrated}
    found = bnn.laplace_(net, data, prior_precision="validation", **options)
    assert found.prior_precision["2"] == bnn.laplace.GRID[expected]
    assert not found.variance_factor
    with pytest.raises(ValueError, match="needs validation data"):
        bnn.laplace_(mlp(), data, prior_precision="validation")


@pytest.mark.filterwarnings("ignore:Laplace's approximation is too wide")
def test_validation_data_run_through_the_network_once() -> None:
    """What comes before the last layer is the same for all precisions; where something follows it, the network runs."""
    data, held_out = classes(60), classes(150)
    for tail, most in ((nn.Identity(), 3), (nn.LogSoftmax(-1), math.inf)):
        net, seen = nn.Sequential(*mlp(), tail), []
        net[0].register_forward_hook(lambda layer, args, output, seen=seen: seen.append(len(args[0])))
        bnn.laplace_(net, data, prior_precision="validation", validation=held_out, generator=_seeded())
        runs = seen.count(150)
        assert 0 < runs <= most
        assert (runs > 3) == isinstance(tail, nn.LogSoftmax)


@pytest.mark.filterwarnings("ignore:Laplace's approximation is too wide")
def test_a_posterior_that_its_curvature_keeps_narrow_is_widened() -> None:
    """With 10^5 data no precision lets a network that is too sure of itself doubt: the variances are multiplied."""
    torch.manual_seed(2)
    net, data, held_out = sure(300, 400, times=6)
    narrow, wide = copy.deepcopy(net), copy.deepcopy(net)
    bnn.laplace_(narrow, data, prior_precision=bnn.laplace.GRID[0], num_data=10**5)
    found = bnn.laplace_(
        wide, data, prior_precision="validation", validation=held_out, num_data=10**5, generator=_seeded()
    )
    factor = found.variance_factor["2"]
    assert factor in bnn.laplace.FACTORS
    assert math.isclose(found.prior_precision["2"], bnn.laplace.GRID[0] / factor, rel_tol=1e-6)
    variances = [bnn.draws(one.eval(), held_out[0], 4000, _seeded()).var(0).mean().item() for one in (narrow, wide)]
    assert math.isclose(variances[1] / variances[0], factor, rel_tol=0.02)
    nlls = [
        bnn.predict(one, held_out[0], samples=200).probs.gather(1, held_out[1][:, None]).log().mean().neg().item()
        for one in (narrow, wide)
    ]
    assert nlls[1] < nlls[0] - 0.05


def test_a_layer_without_noise_may_have_other_directions() -> None:
    net, data = mlp(), classes(300)
    bnn.bayesianize_(net, "point-u", inducing_rows=2, inducing_cols=2)
    expected, own, all_of_them = net(data[0]).detach(), copy.deepcopy(net), copy.deepcopy(net)
    bnn.laplace_(own, data, prior_precision=1.0)
    bnn.laplace_(all_of_them, data, prior_precision=1.0, inducing_cols=100)
    plain = nn.Linear(16, 3)
    plain.load_state_dict({"weight": net[2].weight.detach(), "bias": net[2].bias.detach()})
    same = nn.Sequential(net[0], net[1], plain)
    bnn.laplace_(same, data, prior_precision=1.0)
    assert [len(one[2].z_col) for one in (own, all_of_them, same)] == [2, 17, 17]
    for one in (own, all_of_them):
        assert torch.allclose(bnn.draws(one.eval(), data[0], samples=0)[0], expected, atol=1e-5)
    found = [bnn.predict(one, data[0], samples="logits", generator=_seeded()) for one in (all_of_them, same)]
    assert torch.allclose(found[0].probs, found[1].probs, atol=1e-3)
    assert torch.allclose(found[0].epistemic, found[1].epistemic, atol=1e-3)
    before = copy.deepcopy(net)
    with pytest.raises(ValueError, match="rank 2"):
        bnn.laplace_(net, data, inducing_cols=1)
    assert torch.equal(net(data[0]), before(data[0]))
    assert type(net[2]) is type(before[2])


def test_fewer_columns_keep_the_function_and_the_mean_variance() -> None:
    whole, data = mlp().double(), (torch.randn(300, 4, dtype=DOUBLE), torch.randint(3, (300,)))
    narrow = copy.deepcopy(whole)
    expected = whole(data[0]).detach()
    bnn.laplace_(whole, data, prior_precision=1.0, labels="exact")
    bnn.laplace_(narrow, data, prior_precision=1.0, labels="exact", inducing_cols=4)
    assert narrow[2].z_col.shape == (4, 17)
    assert 0 < narrow[2].lamda().item() < 1
    assert bnn.parameter_count(narrow) < bnn.parameter_count(whole)
    assert torch.allclose(bnn.draws(narrow, data[0], samples=0)[0], expected, atol=1e-8)
    variances = [bnn.draws(one, data[0], samples=2000).var(0).mean().item() for one in (whole, narrow)]
    assert abs(variances[1] / variances[0] - 1) < 0.1


def test_training_may_go_on_and_files_keep_it(tmp_path: Any) -> None:
    net, data = mlp(), classes()
    bnn.laplace_(net, data)
    bnn.save(net, tmp_path / "net.safetensors")
    fresh = mlp()
    bnn.load_(fresh, tmp_path / "net.safetensors")
    assert torch.equal(bnn.draws(fresh, data[0], 3, _seeded()), bnn.draws(net, data[0], 3, _seeded()))
    assert bnn.kl_divergence(fresh).item() == bnn.kl_divergence(net).item()
    bnn.fit(net, data, epochs=1, progress=False)
    bnn.laplace_(net, data)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_the_same_seed_gives_the_same_posterior_whatever_the_batches() -> None:
    nets = [mlp() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, size in zip(nets, (50, 120), strict=True):
        bnn.laplace_(net, classes_of(0), labels="exact", batch_size=size, generator=_seeded())
    assert torch.allclose(covariance(nets[0][2]), covariance(nets[1][2]), rtol=1e-3, atol=1e-6)


def classes_of(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(120, 4, generator=generator), torch.randint(3, (120,), generator=generator)


# ---- what it refuses -------------------------------------------------------------------------------------------------


def converted(**options: Any) -> nn.Sequential:
    net = mlp()
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, **options)
    return net


def global_net() -> nn.Sequential:
    net = converted()
    bnn.register_global_inducing_weights_(net, 2, 2)
    return net


def other_family() -> nn.Sequential:
    net = mlp()
    bnn.bayesianize_(net, "ffg")
    return net


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8192), nn.ReLU(), nn.Linear(8192, 3))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (global_net, {"layers": "all"}, "global inducing weights"),
        (lambda: converted(q_inducing="ensemble", ensemble_size=2), {}, "Ensemble-U of 2 members"),
        (other_family, {}, "family 'ffg'"),
        (wide, {}, "8193 inputs"),
        (mlp, {"layers": "all"}, "there are none"),
        (mlp, {"layers": "1"}, "names no Linear"),
        (mlp, {"layers": "nothing.*"}, "names no Linear"),
        (mlp, {"prior_precision": "evidence"}, "marginal"),
        (mlp, {"prior_precision": -1.0}, "prior_precision"),
        (mlp, {"labels": "true"}, "sampled"),
        (mlp, {"inducing_cols": 2}, "rank 3"),
    ],
)
def test_refusals_leave_the_network_alone(make: Any, options: dict[str, Any], message: str) -> None:
    net = make()
    kinds, state = [type(m) for m in net.modules()], {name: one.clone() for name, one in net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        bnn.laplace_(net, classes(), **options)
    assert [type(m) for m in net.modules()] == kinds
    assert net.state_dict().keys() == state.keys()
    assert all(torch.equal(one, state[name]) for name, one in net.state_dict().items())


def test_nan_and_empty_data_are_refused() -> None:
    x, y = classes()
    with pytest.raises(ValueError, match="NaN or inf"):
        bnn.laplace_(mlp(), (x * float("nan"), y))
    with pytest.raises(ValueError, match="empty"):
        bnn.laplace_(mlp(), (x[:0], y[:0]))


def test_a_bare_function_as_likelihood_is_refused() -> None:
    with pytest.raises(TypeError, match="sampled_score"):
        bnn.laplace_(mlp(), classes(), likelihood=nn.functional.cross_entropy)


def test_a_network_with_two_outputs_is_refused() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), x

    with pytest.raises(TypeError, match="one output tensor"):
        bnn.laplace_(nn.Sequential(Two(4, 3)), classes())


def test_one_real_target_may_lack_its_dimension_and_a_temperature_is_taken_off() -> None:
    x = torch.randn(80, 4)
    assert bnn.laplace_(mlp(d_out=1), (x, torch.randn(80))).likelihood.sd().item() > 0
    net, data = mlp(), classes(200)
    bnn.calibrate_(net, data)
    with pytest.warns(UserWarning, match="temperature is taken off"):
        bnn.laplace_(net, data)


def test_a_posterior_that_is_too_wide_is_said() -> None:
    """A network that is sure of few data: no curvature, and a prior that reaches far."""
    x = torch.randn(40, 4)
    y = x[:, :3].argmax(1)
    net = nn.Linear(4, 3)
    net.weight.data, net.bias.data = 100 * torch.eye(3, 4), torch.zeros(3)
    with pytest.warns(UserWarning, match='prior_precision="validation"'):
        bnn.laplace_(net, (x, y), prior_precision=1e-4)


def test_units_that_never_fire_do_not_break_a_posterior_of_fewer_columns() -> None:
    """Second moments that are 0 but for rounding, and a precision far below them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        net[0].bias[:40] = -100.0
    data = (10 * torch.randn(400, 4), torch.randint(10, (400,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is too wide
        bnn.laplace_(net, data, prior_precision=1e-6, inducing_cols=12, num_data=10**9)
    assert 0 < net[2].lamda().item() < math.inf
    assert bnn.draws(net, torch.randn(3, 4), samples=4).isfinite().all()
