"""`bnn.predict(samples="logits")`: the Gaussian over outputs where only the last layer is Bayesian."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import set_noise_
from torch import Tensor, nn

import bnn
from bnn import closed_form
from bnn.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian

DRAWS = 1_000  # of weights, that the closed form is compared with
DOUBLE = torch.double


def mlp(d_out: int = 3, bias: bool = True, **options: Any) -> nn.Sequential:
    """A network with a Bayesian last layer whose draws differ a good deal."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, d_out, bias=bias))
    given = {"inference": "inducing", "inducing_rows": 4, "inducing_cols": 5} | options
    bnn.bayesianize_(net, {"2": given})
    set_noise_(net[2], 0.3)
    return net


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def positions() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 3, 1))
    bnn.bayesianize_(net, {"2": {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 4, "init_lamda": 0.2}})
    set_noise_(net[2], 0.3)
    return net, torch.randn(2, 1, 3, 4)


def patches() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Identity(), nn.Conv2d(2, 3, 3, padding=1, stride=2))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=5, init_lamda=0.2)
    set_noise_(net[1], 0.3)
    return net, torch.randn(2, 2, 5, 5)


def sequences() -> tuple[nn.Module, Tensor]:
    return mlp(), torch.randn(2, 5, 4)


def rows_of(**options: Any) -> tuple[nn.Module, Tensor]:
    return mlp(**options), torch.randn(6, 4)


CASES = {
    "lamda > 0": lambda: rows_of(init_lamda=0.3),
    "lamda = 0": lambda: rows_of(max_lamda=0.0),
    "no bias": lambda: rows_of(bias=False, init_lamda=0.3),
    "point": lambda: rows_of(max_sd_u=0.0, init_lamda=0.3),
    "unwhitened": lambda: rows_of(whitened_u=False),
    "M above d": lambda: rows_of(inducing_rows=6, inducing_cols=12, init_lamda=0.3),
    "one row": lambda: (mlp(), torch.randn(1, 4)),
    "sequences": sequences,
    "1 x 1 kernel": positions,
    "3 x 3 kernel": patches,
}


# ---- agreement with draws of the weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_moments_are_those_of_draws_of_the_weights(case: str) -> None:
    """Means within 5 standard errors, variances within 25 % (5 standard errors of 1,000 draws are 22 %)."""
    net, x = CASES[case]()
    outputs = bnn.draws(net, x, samples=DRAWS, generator=seeded())
    found = bnn.predict(net, x, "logits", likelihood=Gaussian(0.5, learn=False))
    sds = outputs.std(0)
    assert found.mean.shape == outputs.shape[1:]
    assert torch.all((found.mean - outputs.mean(0)).abs() < 5 * sds / DRAWS**0.5 + 1e-6)
    assert torch.allclose(found.epistemic, outputs.var(0), rtol=0.25)
    assert torch.allclose(found.aleatoric, torch.full_like(found.mean, 0.25))
    assert torch.allclose(found.total, found.aleatoric + found.epistemic)


def test_the_mean_is_that_of_the_network() -> None:
    net, x = CASES["lamda > 0"]()
    found = bnn.predict(net, x, "logits", likelihood=Gaussian(0.5, learn=False))
    assert torch.allclose(found.mean, bnn.draws(net, x, samples=0)[0], atol=1e-5)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
@pytest.mark.parametrize("case", ["lamda > 0", "lamda = 0", "1 x 1 kernel"])
def test_classes_agree_with_draws_of_the_weights(likelihood: Any, case: str) -> None:
    """200 draws of logits and 1,000 of the weights: within 0.08, where probabilities have sds of 0.2 or so."""
    net, x = CASES[case]()
    set_noise_(net, 1.0)
    found = bnn.predict(net, x, "logits", likelihood, seeded())
    expected = bnn.predict(net, x, DRAWS, likelihood, seeded())
    assert expected.epistemic.max() > 0.05
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=0.08)


def test_predicted_noise_agrees_with_draws_of_the_weights() -> None:
    net, x = mlp(d_out=4), torch.randn(6, 4)
    found = bnn.predict(net, x, "logits", "heteroscedastic")
    expected = bnn.predict(net, x, 4 * DRAWS, "heteroscedastic", seeded())
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert torch.allclose(one, other, rtol=0.12)
    assert found.mean.shape == (6, 2)


def test_expected_noise_by_quadrature() -> None:
    """Against a fine grid over five sds, in float64."""
    mean, variance = torch.tensor([[0.3, -1.0, 0.5, -2.0]], dtype=DOUBLE), torch.tensor([[1.0, 2.0, 4.0, 0.01]])
    found = HeteroscedasticGaussian().from_gaussian(mean, variance.double())
    z = torch.linspace(-8, 8, 4001, dtype=DOUBLE)
    density = torch.exp(-z.square() / 2)
    sd = 1e-3 + nn.functional.softplus(mean[0, 2:, None] + variance[0, 2:, None].double().sqrt() * z)
    expected = (sd.square() * density).sum(1) / density.sum()
    assert torch.allclose(found.aleatoric[0], expected, rtol=1e-6)
    assert torch.equal(found.mean, mean[:, :2])
    assert torch.equal(found.epistemic, variance[:, :2].double())


@pytest.mark.parametrize("bias", [True, False])
def test_regression_is_bayesian_linear_regression(bias: bool) -> None:
    """After Laplace with exact labels: mean and variance of the closed-form posterior, to rounding."""
    torch.manual_seed(0)
    X, Y, sd, tau = torch.randn(50, 3, dtype=DOUBLE), torch.randn(50, 2, dtype=DOUBLE), 0.4, 0.7
    F = torch.cat([X, torch.ones(50, 1, dtype=DOUBLE)], 1) if bias else X
    precision = F.mT @ F / sd**2 + tau * torch.eye(F.shape[1], dtype=DOUBLE)
    W = torch.linalg.solve(precision, F.mT @ Y / sd**2).mT
    net = nn.Linear(3, 2, bias=bias, dtype=DOUBLE)
    net.weight.data = W[:, :3].clone()
    if bias:
        net.bias.data = W[:, 3].clone()
    noise = Gaussian(sd, learn=False).double()
    bnn.laplace_(net, (X, Y), prior_precision=tau, likelihood=noise, labels="exact")
    found = bnn.predict(net, X, "logits", likelihood=noise)
    variance = (F * torch.linalg.solve(precision, F.mT).mT).sum(1, keepdim=True).expand(50, 2)
    assert torch.allclose(found.mean, F @ W.mT, atol=1e-9)
    assert torch.allclose(found.epistemic, variance, rtol=1e-6)
    assert torch.allclose(found.total, variance + noise.sd().square(), rtol=1e-6)


# ---- ensembles, batches, generators ----------------------------------------------------------------------------------


def test_ensembles_are_mixtures() -> None:
    members = [mlp(init_lamda=0.1) for _ in range(3)]
    ensemble, x = bnn.Ensemble(members), torch.randn(6, 4)
    noise = Gaussian(0.5, learn=False)
    found = bnn.predict(ensemble, x, "logits", noise)
    parts = [bnn.predict(member, x, "logits", noise) for member in members]
    means = torch.stack([part.mean for part in parts])
    assert torch.allclose(found.mean, means.mean(0), atol=1e-6)
    within = torch.stack([part.epistemic for part in parts]).mean(0)
    assert torch.allclose(found.epistemic, within + means.var(0, correction=0), rtol=1e-5)
    assert torch.allclose(found.total, found.epistemic + found.aleatoric)
    classes = bnn.predict(ensemble, x, "logits", generator=seeded(), keep_samples=True)
    assert classes.samples.shape == (201, 6, 3)  # 67 of each
    assert torch.allclose(classes.probs, bnn.predict(ensemble, x, 3 * DRAWS, generator=seeded()).probs, atol=0.06)


@pytest.mark.parametrize("case", ["lamda > 0", "3 x 3 kernel"])
def test_neither_batches_nor_neighbours_change_a_prediction(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = CASES[case]()
    x = torch.cat([x, x + 1, x - 1])
    found = bnn.predict(net, x, "logits", generator=seeded(), keep_samples=True)
    monkeypatch.setattr(closed_form, "BYTES", 1)  # one input at a time
    for size in (None, 4):
        other = bnn.predict(net, x, "logits", generator=seeded(), batch_size=size, keep_samples=True)
        assert other.samples.shape == found.samples.shape == (closed_form.DRAWS, *found.probs.shape)
        for one, two in zip((*found, found.samples), (*other, other.samples), strict=True):
            assert torch.allclose(one, two, atol=1e-4)


def test_generators_make_draws_repeatable() -> None:
    net, x = CASES["lamda > 0"]()
    one, two, three = (bnn.predict(net, x, "logits", generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.probs, two.probs)
    assert not torch.equal(one.probs, three.probs)
    state = torch.get_rng_state()
    bnn.predict(net, x, "logits", generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_that_are_kept_are_those_that_count() -> None:
    net, x = CASES["lamda > 0"]()
    found = bnn.predict(net, x, "logits", keep_samples=True)
    assert torch.allclose(found.probs, found.samples.softmax(-1).mean(0), atol=1e-5)
    with pytest.raises(ValueError, match="samples=20 draws"):
        bnn.predict(net, x, "logits", Gaussian(1.0, learn=False), keep_samples=True)


def test_a_likelihood_of_the_users_own_gets_draws_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            return output.sum()

        def predictive(self, outputs: Tensor) -> int:
            return len(outputs)

    net, x = CASES["lamda > 0"]()
    assert bnn.predict(net, x, "logits", Counting()) == closed_form.DRAWS
    monkeypatch.setattr(closed_form, "BYTES", 1)
    with pytest.raises(TypeError, match="cannot join a int"):
        bnn.predict(net, x, "logits", Counting())


def test_the_network_runs_once_and_keeps_its_modes() -> None:
    net, x = mlp(), torch.randn(6, 4)
    calls = []
    net[0].register_forward_hook(lambda *args: calls.append(1))
    net.train()
    bnn.predict(net, x, "logits")
    assert len(calls) == 1
    assert all(module.training for module in net.modules())
    assert len(net[2]._forward_hooks) == 0


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_types(kind: torch.dtype) -> None:
    net, x = mlp().to(kind), torch.randn(6, 4, dtype=kind)
    found = bnn.predict(net, x, "logits", generator=seeded())
    assert found.probs.dtype == (torch.float32 if kind is torch.bfloat16 else kind)
    with torch.inference_mode():
        again = bnn.predict(net, x, "logits", generator=seeded())
    assert torch.allclose(found.probs, again.probs)


# ---- what it refuses -------------------------------------------------------------------------------------------------


class Ends(nn.Module):
    """A network whose last step is a function of the layer's output."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.inner, self.end = mlp(), end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.inner(x))


def in_place(y: Tensor) -> Tensor:
    return y.mul_(2)


@pytest.mark.parametrize(
    "end",
    [lambda y: y.softmax(1), lambda y: y.reshape(-1), in_place, lambda y: (y, y), lambda y: y[:3], lambda y: y + 0],
)
def test_what_follows_the_layer_is_refused(end: Any) -> None:
    for mode in (torch.no_grad(), torch.inference_mode()):
        with pytest.raises(ValueError, match="something follows it"), mode:
            bnn.predict(Ends(end), torch.randn(3, 4).repeat(2, 1), "logits")


def test_what_changes_nothing_may_follow_the_layer() -> None:
    for end in (lambda y: y, nn.Identity(), nn.Dropout(0.5), lambda y: y.view(y.shape)):
        assert bnn.predict(Ends(end), torch.randn(6, 4), "logits").probs.shape == (6, 3)


def twice() -> nn.Module:
    layer = bnn.nn.InducingLinear(4, 4, inducing_rows=2, inducing_cols=2)
    return nn.Sequential(layer, layer)


def all_layers() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    return net


def other_family() -> nn.Module:
    net = nn.Linear(4, 3)
    bnn.bayesianize_(net, "ffg")
    return net


def grouped() -> nn.Module:
    net = nn.Conv1d(4, 4, 1, groups=2)
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    return nn.Sequential(nn.Unflatten(1, (4, 1)), net)


def nested() -> nn.Module:
    return nn.Sequential(bnn.Ensemble([mlp(), mlp()]), nn.Identity())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(4, 3), "this one has none"),
        (lambda: bnn.Ensemble(nn.Linear(4, 3), members=2), "this one has none"),
        (all_layers, "this one has 2: 0; 1"),
        (other_family, "family is 'ffg'"),
        (lambda: mlp(q_inducing="matrix"), "'matrix', not 'diagonal'"),
        (lambda: mlp(q_inducing="ensemble", ensemble_size=2), "'ensemble', not 'diagonal'"),
        (grouped, "has groups"),
        (nested, "an ensemble inside"),
        (twice, "ran 2 times"),
    ],
)
def test_other_networks_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bnn.predict(make(), torch.randn(6, 4), "logits")


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match='None or "logits", got'):
        bnn.predict(mlp(), torch.randn(6, 4), "logit")  # a typo
    with pytest.raises(ValueError, match="an integer"):
        bnn.draws(mlp(), torch.randn(6, 4), "logits")  # type: ignore[arg-type]


def test_copies_are_independent_of_prediction() -> None:
    net, x = CASES["lamda > 0"]()
    before = copy.deepcopy(net.state_dict())
    bnn.predict(net, x, "logits")
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


def test_large_inputs_overflow_no_earlier_than_in_the_plain_network() -> None:
    net = nn.Linear(4, 3)
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4, init_lamda=0.1)
    set_noise_(net, 0.1)
    found = bnn.predict(net, 1e20 * torch.randn(6, 4), "logits", keep_samples=True)
    assert torch.isfinite(found.samples).all()
    assert torch.isfinite(found.epistemic).all()


def test_evaluate_takes_classes_but_not_real_targets() -> None:
    net, x = CASES["lamda > 0"]()
    found = bnn.evaluate(net, (x, torch.randint(3, (6,))), samples="logits", resamples=20, progress=False)
    assert found.draws == closed_form.DRAWS
    with pytest.raises(ValueError, match="samples=20"):
        bnn.evaluate(
            net, (x, torch.randn(6, 3)), samples="logits", likelihood=Gaussian(1.0), resamples=20, progress=False
        )
