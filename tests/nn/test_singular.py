"""Singular BNN: moments, KL, start, and outputs through the factors against W = A B^T built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import LAYER_TYPES, LayerType, ids
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.utils.flop_counter import FlopCounterMode

import bnn
from bnn._conversion.energy import EnergyWarning
from bnn._conversion.method import _parsed, _value
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.functional.kernels import from_matrix, to_matrix
from bnn.functional.product import factor_sd, factors_of
from bnn.nn.base import Weights
from bnn.nn.families import singular as family

KERNELS = ("paper", "split")


def made(plain: nn.Module, **options: Any) -> Any:
    return bayesian_from_template(plain, "singular", **({"rank": 3} | options))


@torch.no_grad()
def at_random_(layer: Any) -> Any:
    """The layer, in place, with random means and sds."""
    for name, parameter in layer.named_parameters():
        parameter.copy_(torch.randn_like(parameter) - (1.0 if "sd" in name else 0.0))
    return layer


def matrix_of(layer: Any, weights: Weights) -> Tensor:
    return to_matrix(*weights, layer.options.kernel)


def factors_by_hand(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means and sds of A, then of B, from the state dict."""
    state = layer.state_dict()
    cap = layer.options.max_sd or float("inf")
    s, t = (F.softplus(state[name]).clamp(max=cap) for name in ("_a_sd", "_b_sd"))
    return state["a_mean"], s, state["b_mean"], t


# ---- the posterior ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [None, 0.2])
@pytest.mark.parametrize("plain", [nn.Linear(6, 4), nn.Conv2d(2, 3, (2, 3), bias=False)], ids=["linear", "conv"])
def test_moments_of_the_weights(plain: nn.Module, cap: float | None) -> None:
    """Mean and variance of every entry in closed form, from 60,000 draws: five standard errors, fixed seed."""
    torch.manual_seed(0)
    layer = at_random_(made(plain, max_sd=cap).double())
    a, s, b, t = factors_by_hand(layer)
    mean = torch.einsum("ik,jk->ij", a, b)
    variance = torch.einsum("ik,jk->ij", a**2, t**2)
    variance += torch.einsum("ik,jk->ij", s**2, b**2) + torch.einsum("ik,jk->ij", s**2, t**2)
    n = 60_000
    with torch.no_grad():
        W = torch.stack([matrix_of(layer, Weights(*one)) for one in _each(layer.sample_weights(Draw(count=n)))])
        torch.testing.assert_close(matrix_of(layer, layer.mean_weights()), mean)
    assert ((W.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    error = ((W - mean).square().var(0) / n).sqrt()  # of the variance
    assert ((W.var(0) - variance).abs() < 5 * error).all()


def _each(weights: Weights) -> list[tuple[Tensor, Tensor | None]]:
    weight, bias = weights
    return list(zip(weight, [None] * len(weight) if bias is None else list(bias), strict=True))


def test_entries_of_a_column_are_dependent() -> None:
    """Cov[W_ij, W_lj] = sum_k a_ik a_lk t_jk^2 for different rows: they share B. Five standard errors."""
    torch.manual_seed(1)
    layer, n = made(nn.Linear(2, 2, bias=False), rank=1, init_sd=0.5).double(), 60_000
    with torch.no_grad():
        layer.a_mean.copy_(torch.tensor([[1.0], [-2.0]]))
    a, _, _, t = factors_by_hand(layer)
    with torch.no_grad():
        W = layer.sample_weights(Draw(count=n)).weight
    products = (W[:, 0, 0] - W[:, 0, 0].mean()) * (W[:, 1, 0] - W[:, 1, 0].mean())
    want = float(a[0, 0] * a[1, 0] * t[0, 0] ** 2)
    assert abs(float(products.mean()) - want) < 5 * float(products.std()) / n**0.5
    assert abs(want) > 20 * float(products.std()) / n**0.5  # so that independence would not pass


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [False, True])
def test_the_kl_is_that_of_torch(kernel: str, width: bool) -> None:
    options = {"prior_sd": 0.7, "sqrt_width_scaling": width, "kernel": kernel, "max_sd": 0.4}
    layer = at_random_(made(nn.Conv2d(4, 6, 3), **options).double())
    a, s, b, t = factors_by_hand(layer)
    sigma = 0.7 / (37**0.5 if width else 1.0)  # 4 x 3 x 3 inputs and the bias, however they are arranged
    prior = Normal(0.0, (sigma**2 / 3) ** 0.25)
    want = sum(kl_divergence(Normal(mean, sd), prior).sum() for mean, sd in ((a, s), (b, t)))
    torch.testing.assert_close(layer.kl_divergence(), want)
    assert float(layer.kl_parts().lamda) == 0.0
    assert a.shape == ((6, 3) if kernel == "paper" else (18, 3))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_prior_of_the_weights_has_its_sd(kernel: str) -> None:
    """Also that of a bias, which a split kernel sums over its taps: 20,000 draws of factors from the prior, 3 %."""
    torch.manual_seed(2)
    r, sigma, shape = 5, 0.3, (4, 2, 3)
    assert r * factor_sd(sigma, r) ** 4 == pytest.approx(sigma**2)
    rows, columns = to_matrix(torch.zeros(shape), torch.zeros(4), kernel).shape
    A, B = (factor_sd(sigma, r) * torch.randn(20_000, side, r) for side in (rows, columns))
    weight, bias = from_matrix(A @ B.mT, shape, True, kernel)
    assert bias is not None
    for part in (weight, bias):
        assert float(part.square().mean().sqrt()) == pytest.approx(sigma, rel=0.03)


# ---- the start -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (40, 30)])
def test_the_start_is_the_best_product(shape: tuple[int, int]) -> None:
    W = torch.randn(shape, dtype=torch.double)
    for r in (1, 3, min(shape), min(shape) + 2):
        A, B = factors_of(W, r)
        assert A.shape == (shape[0], r)
        assert B.shape == (shape[1], r)
        U, S, V = torch.linalg.svd(W, full_matrices=False)
        torch.testing.assert_close(A @ B.mT, (U[:, :r] * S[:r]) @ V[:r])
        torch.testing.assert_close(A.square().sum(0)[: len(S)], S[:r])  # both factors have an equal part
        torch.testing.assert_close(B.square().sum(0)[: len(S)], S[:r])
    torch.testing.assert_close(A @ B.mT, W)  # exact at full rank


@pytest.mark.parametrize("kernel", KERNELS)
def test_trained_weights_are_kept_at_full_rank(kernel: str) -> None:
    plain = nn.Conv2d(4, 6, 3).double()
    layer = made(plain, rank=13, kernel=kernel)
    torch.testing.assert_close(layer.weight, plain.weight)
    torch.testing.assert_close(layer.bias, plain.bias)
    plain = nn.Conv2d(4, 6, 3, bias=False).double()  # the split matrix of a bias has more entries than the layer
    small = made(plain, rank=2, kernel=kernel)
    W = to_matrix(plain.weight, None, kernel)
    assert int(torch.linalg.matrix_rank(matrix_of(small, small.mean_weights()))) == 2
    lost = (W - matrix_of(small, small.mean_weights())).square().sum()
    torch.testing.assert_close(lost, torch.linalg.svdvals(W)[2:].square().sum())


def test_a_random_start_has_the_sd_of_the_prior() -> None:
    """480 x 21 and 161 x 21 entries: within 4 %."""
    torch.manual_seed(3)
    layer = made(nn.Linear(160, 480), rank=21, init="paper", prior_sd=0.5, init_sd=0.01)
    for mean in (layer.a_mean, layer.b_mean):
        assert float(mean.detach().std()) == pytest.approx((0.25 / 21) ** 0.25, rel=0.04)
    torch.testing.assert_close(layer.sds().A.detach(), torch.full_like(layer.a_mean, 0.01))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"prior_sd": -1.0}, "prior_sd must be a finite number > 0 or 'weights'"),
        ({"init_sd": 0.0}, "init_sd"),
        ({"max_sd": 0.0}, "max_sd"),
        ({"kernel": "wide"}, "kernel"),
        ({"init": "random"}, "init"),
        ({"budget": 2.5}, "budget"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(nn.Linear(3, 2), **options)


def test_weights_that_are_no_numbers() -> None:
    plain = nn.Linear(3, 2)
    plain.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"weights to keep, \(2, 4\) as a matrix, hold NaN or inf"):
        made(plain)


# ---- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", LAYER_TYPES, ids=ids(LAYER_TYPES))
def test_outputs_through_the_factors(case: LayerType, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A (B^T x) is W x, values and gradients, for one input of all draws and for one each, folded or not."""
    layer = at_random_(made(case.layer(), kernel=kernel).double())
    for number, folded in ((1, False), (1, True), (3, False), (3, True)):
        x = torch.stack([case.input().double() for _ in range(number)])

        def outputs(pays: bool, x: Tensor = x, folded: bool = folded) -> Tensor:
            monkeypatch.setattr(family, "by_factors", lambda size: pays)
            draw = Draw(count=3, seeds=Seeds(layer, 7))
            if not folded:
                result: Tensor = layer.output(x, draw)
                return result
            return in_one_pass(layer, x, draw, dims=0) if len(x) == 3 else in_one_pass(layer, x[0], draw)

        got, want = outputs(True), outputs(False)
        torch.testing.assert_close(got, want)
        factors = [layer.a_mean, layer._a_sd, layer.b_mean, layer._b_sd]
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), factors), torch.autograd.grad(want.square().sum(), factors)
        )


def test_large_layers_never_build_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those of nearly full rank do where there are many rows, and narrow ones always."""
    built: list[str] = []
    monkeypatch.setattr(family.Singular, "_weights", lambda self, factors: built.append("W") or _unbuilt())
    x = torch.randn(64, 512)
    made(nn.Linear(512, 512), rank=32)(x)
    made(nn.Conv2d(64, 64, 3, padding=1), rank=16)(torch.randn(4, 64, 8, 8))
    made(nn.Conv2d(64, 64, 3, padding=1), rank=16, kernel="split")(torch.randn(4, 64, 8, 8))
    assert not built
    for layer, rank, rows in ((nn.Linear(512, 512), 400, 2000), (nn.Linear(512, 8), 8, 64)):
        with pytest.raises(NotImplementedError):
            made(layer, rank=rank)(torch.randn(rows, 512))
    assert len(built) == 2


def _unbuilt() -> Weights:
    raise NotImplementedError


def test_multiplies_are_those_of_the_method() -> None:
    """Counted by torch: two operations for each."""
    layer = made(nn.Linear(512, 256, bias=False), rank=16)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.output(torch.randn(3, 40, 512), Draw(count=3, seeds=Seeds(layer, 7)))
    sizes = {"K": 3, "N": 40, "r": 16, "d_out": 256, "d_in": 512}
    assert counter.get_total_flops() == 2 * _value(_parsed(bnn.methods()["singular-w"].multiplies), sizes)


def test_factors_that_are_not_kept_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    bnn.bayesianize_(net, "singular", rank=3, init_sd=0.3, init="paper")
    x = torch.randn(5, 20)
    want = bnn.draws(net, x, samples=4, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(family, "FACTOR_BYTES", 0)
    torch.testing.assert_close(bnn.draws(net, x, samples=4, generator=torch.Generator().manual_seed(0)), want)
    assert (want.std(0) > 0).all()


# ---- conversion ------------------------------------------------------------------------------------------------------


def trained_net() -> nn.Sequential:
    """A network whose weights do not look like torch's start."""
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter).pow(3) / 20)
    return net


@pytest.mark.filterwarnings("ignore::bnn._conversion.energy.EnergyWarning")
@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("budget", [0.35, 0.6, 2500])
def test_a_budget_is_never_exceeded(budget: float, inputs: bool) -> None:
    torch.manual_seed(4)
    net, x = trained_net(), torch.randn(100, 3, 6, 6)
    plain = bnn.parameter_count(net)
    bnn.bayesianize_(net, "singular", budget=budget, activations=x if inputs else None)
    limit = budget if isinstance(budget, int) else budget * plain
    assert bnn.parameter_count(net) <= limit
    layers: Any = [net[0], net[2], net[5]]
    assert layers[2].sizes() == (5,)  # the last one keeps full rank
    for layer in layers[:2]:  # no rank could grow within the budget
        shape = layer.matrix_shape()
        larger = layer.cost_of_rank(shape, layer.options, layer.sizes()[0] + 1)
        assert larger - bnn.parameter_count(layer) == 2 * sum(shape)
        assert larger > layer.d_in * layer.d_out or bnn.parameter_count(net) + 2 * sum(shape) > limit
    assert layers[1].options.kernel == "split"  # (48, 73) takes fewer parameters than (16, 217)


def test_a_budget_with_inducing_layers_beside() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 3))
    plain = bnn.parameter_count(net)
    bnn.bayesianize_(net, {"0": "singular", "2": "inducing", "4": "singular"}, budget=0.5)
    assert 0.4 * plain < bnn.parameter_count(net) <= 0.5 * plain
    assert [layer.sizes for layer in bnn.summary(net).layers][2] == (3,)


def test_half_of_the_parameters_by_default() -> None:
    layer = bayesian_from_template(nn.Linear(63, 40), "singular")
    assert layer.sizes() == (64 * 40 // 2 // (2 * 104),)
    with pytest.raises(ValueError, match="budget=9 of 2560 parameters: a rank of 1 takes 208, the least possible"):
        bayesian_from_template(nn.Linear(63, 40), "singular", budget=9)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(40, 40), nn.Linear(40, 3))
    with pytest.warns(UserWarning, match=r"left deterministic: 0 \(Linear\): even a rank of 1 takes 14 parameters"):
        bnn.bayesianize_(net, "singular", budget=0.9)
    with pytest.warns(UserWarning, match="budget=0.5 has no effect: rank are given, and they win"):
        bnn.bayesianize_(nn.Sequential(nn.Linear(9, 9)), "singular", rank=1, budget=0.5)


@pytest.mark.filterwarnings("ignore::bnn._conversion.energy.EnergyWarning")
@pytest.mark.parametrize("kernel", KERNELS)
def test_activations_start_from_the_fitted_product(kernel: str) -> None:
    """The very weights that an inducing layer of the same rank starts from; and better outputs than truncation."""
    torch.manual_seed(6)
    plain, x = trained_net(), torch.randn(300, 3, 6, 6) * torch.linspace(0.1, 3, 6)
    want = plain(x).detach()
    nets = {}
    for name, more in {
        "singular": {"rank": 4, "activations": x},
        "inducing": {"inducing_rows": 4, "activations": x},
        "truncated": {"rank": 4},
    }.items():
        nets[name] = trained_net()
        nets[name].load_state_dict(plain.state_dict())
        bnn.bayesianize_(nets[name], "singular" if "rank" in more else "inducing", kernel=kernel, **more)
    fitted: Any
    for fitted, other in zip(nets["singular"], nets["inducing"], strict=True):
        if hasattr(fitted, "kl_divergence"):
            torch.testing.assert_close(fitted.weight, other.weight, atol=1e-4, rtol=1e-3)
            assert fitted.energy_kept == pytest.approx(other.energy_kept, abs=1e-4)
    with torch.no_grad():
        lost = {name: float((bnn.draws(net, x, samples=0) - want).square().sum()) for name, net in nets.items()}
    assert lost["singular"] < 0.8 * lost["truncated"]


def test_what_is_lost_is_said() -> None:
    torch.manual_seed(7)
    net = trained_net()
    with pytest.warns(EnergyWarning, match="keep less than 80% of the energy"):
        bnn.bayesianize_(net, "singular", rank=1)
    first = bnn.summary(net).layers[0]
    assert first.sizes == (1,)
    assert first.energy_kept is not None
    assert 0 < first.energy_kept < 0.8
    assert first.multiplies == 24 + 27
