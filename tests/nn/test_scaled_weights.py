"""Rank-1 and BatchEnsemble: W * (s r^T) against its moments, explicit members, and torch.distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical as Component
from torch.distributions import Independent, MixtureSameFamily, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import bnn
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn.bayesianize import bayesian_from_template

DRAWS = 200_000
SIZES = {"rank1": "components", "batchensemble": "ensemble_size"}  # the option that says how many members there are
both = pytest.mark.parametrize("family", list(SIZES))
PLAIN = [
    nn.Linear(5, 4),
    nn.Linear(3, 2, bias=False),
    nn.Conv1d(3, 4, 2),
    nn.Conv2d(4, 6, (3, 2), groups=2),
    nn.Conv3d(2, 3, 2, bias=False),
]
each_layer = pytest.mark.parametrize("plain", PLAIN, ids=str)


def made(plain: nn.Module, family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return bayesian_from_template(plain, family, **options).double()


def members_of(layer: Any) -> list[tuple[Tensor, Tensor]]:
    r, s = layer.members()
    return list(zip(r.detach(), s.detach(), strict=True))


def weight_of(layer: Any, r: Tensor, s: Tensor) -> Tensor:
    """W * (s r^T), entry by entry."""
    W = layer.shared_weight.detach().clone()
    for o in range(W.shape[0]):
        for c in range(W.shape[1]):
            W[o, c] *= s[o] * r[c]
    return W


def input_for(plain: Any) -> Tensor:
    if isinstance(plain, nn.Linear):
        return torch.randn(3, plain.in_features).double()
    return torch.randn(3, plain.in_channels, *[5] * len(plain.kernel_size)).double()


# ---- what a member is ------------------------------------------------------------------------------------------------


@each_layer
def test_batchensemble_is_its_explicit_members(plain: Any) -> None:
    layer, x = made(plain, "batchensemble", ensemble_size=3, member_sd=0.5), input_for(plain)
    got = in_one_pass(layer, x, Draw(count=3, members=[2, 0, 1]))
    for output, k in zip(got, [2, 0, 1], strict=True):
        weights = {"weight": weight_of(layer, *members_of(layer)[k])} | ({"bias": layer.bias} if layer.has_bias else {})
        torch.testing.assert_close(output, torch.func.functional_call(plain, weights, (x,)))
    mean = sum(weight_of(layer, r, s) for r, s in members_of(layer)) / 3
    torch.testing.assert_close(layer.weight, mean)
    torch.testing.assert_close(bnn.draws(layer, x, samples=0)[0], layer.run(x, mean, layer.bias))


@both
@each_layer
def test_factors_of_one_leave_the_plain_layer(plain: Any, family: str) -> None:
    layer, x = made(plain, family, member_sd=0.0, **({"init_sd": 1e-12} if family == "rank1" else {})), input_for(plain)
    for factors in layer.members():
        assert (factors == 1).all()
    want = plain.double()(x)
    torch.testing.assert_close(bnn.draws(layer, x, samples=4), want.expand(4, *want.shape))


def test_rank1_without_variance_is_deterministic_given_the_component() -> None:
    layer = made(nn.Linear(5, 4), "rank1", init_sd=1e-12)
    x = torch.randn(3, 5).double()
    draws = layer.output(x[None], Draw(count=8, members=[0, 1, 2, 3] * 2))
    torch.testing.assert_close(draws[:4], draws[4:])
    assert all(not torch.allclose(draws[0], draws[k]) for k in (1, 2, 3))


@both
@each_layer
def test_weights_at_hand_are_the_mean_over_members(plain: Any, family: str) -> None:
    for size, sd in ((1, 0.3), (2, 0.1), (5, 0.4)):
        layer = made(plain, family, member_sd=sd, **{SIZES[family]: size})
        torch.testing.assert_close(layer.weight.float(), plain.weight.detach().float(), rtol=1e-5, atol=1e-7)
        for factors in layer.members():
            torch.testing.assert_close(factors.mean(0), torch.ones_like(factors[0]), atol=1e-6, rtol=0.0)


# ---- moments and KL --------------------------------------------------------------------------------------------------


def test_the_moments_of_rank1_weights() -> None:
    """Given the component: E = W s r, Cov of two entries by E[s s'] E[r r'] - E[s] E[s'] E[r] E[r']; 200,000 draws."""
    layer = made(nn.Linear(3, 2), "rank1", components=2, init_sd=0.3, member_sd=0.5)
    W = layer.shared_weight.detach()
    for k, (r, s) in enumerate(members_of(layer)):
        with torch.no_grad():
            weight, bias = layer.sample_weights(Draw(count=DRAWS, members=[k] * DRAWS))
        assert torch.equal(bias, layer.bias.expand(DRAWS, -1))
        rr, ss = torch.outer(r, r) + 0.09 * torch.eye(3), torch.outer(s, s) + 0.09 * torch.eye(2)
        second = torch.einsum("oc,pd,op,cd->ocpd", W, W, ss, rr).reshape(6, 6)
        mean = (W * torch.outer(s, r)).flatten()
        want = second - torch.outer(mean, mean)
        flat, sd = weight.flatten(1), want.diagonal().sqrt()
        assert ((flat.mean(0) - mean) / sd).abs().max() < 5 / DRAWS**0.5
        assert ((torch.cov(flat.mT) - want) / (sd[:, None] * sd)).abs().max() < 10 / DRAWS**0.5  # products of normals


@each_layer
def test_the_kl_of_rank1(plain: Any) -> None:
    layer = made(plain, "rank1", components=3, prior_sd=0.2, prior_mean=0.9, init_sd=0.05, member_sd=0.3)
    with torch.no_grad():
        layer._r_sd.add_(torch.rand_like(layer._r_sd))
        layer._s_sd.add_(torch.rand_like(layer._s_sd))
    want = torch.zeros(3).double()
    for mean, raw in ((layer.r_mean, layer._r_sd), (layer.s_mean, layer._s_sd)):
        prior = Normal(torch.full_like(mean, 0.9), 0.2)
        want = want + kl_divergence(Normal(mean, F.softplus(raw)), prior).sum(1)
    torch.testing.assert_close(layer.kl_divergence(), want.mean())
    assert layer.kl_parts().lamda == 0
    gradients = torch.autograd.grad(layer.kl_divergence(), [layer.shared_weight], allow_unused=True)
    assert gradients == (None,)  # none on W


def test_the_kl_is_at_least_the_mixtures() -> None:
    """By Monte Carlo with 200,000 draws of both factors; with one component they are equal."""
    torch.manual_seed(1)
    for size in (1, 4):
        layer = made(nn.Linear(2, 2), "rank1", components=size, init_sd=0.05, member_sd=0.1)
        mean = torch.cat([layer.r_mean, layer.s_mean], 1).detach()
        mixture = MixtureSameFamily(
            Component(torch.ones(size).double()), Independent(Normal(mean, torch.full_like(mean, 0.05)), 1)
        )
        drawn = mixture.sample((DRAWS,))
        ratio = mixture.log_prob(drawn) - Normal(torch.ones_like(mean[0]), 0.1).log_prob(drawn).sum(1)
        error = float(ratio.std()) / DRAWS**0.5
        got, estimate = layer.kl_divergence().item(), float(ratio.mean())
        assert got > estimate - 5 * error
        assert size > 1 or got == pytest.approx(estimate, abs=5 * error)


def test_batchensemble_has_no_kl() -> None:
    layer = made(nn.Linear(5, 4), "batchensemble")
    assert layer.kl_divergence() == 0
    out = bnn.ELBO(layer, 10, "gaussian")(torch.randn(10, 5).double(), torch.randn(10, 4).double())
    assert torch.equal(out.loss, out.data)


# ---- K draws in one pass ---------------------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """The most entries of a tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        own = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.size = max([self.size, *own])
        return result


@both
def test_no_draw_builds_weights(family: str) -> None:
    """Multiplies are N K d_out d_in, and nothing as large as two weights is made."""
    layer = bayesian_from_template(nn.Linear(64, 48, bias=False), family, **{SIZES[family]: 4})
    x = torch.randn(3, 64)
    with torch.no_grad(), FlopCounterMode(display=False) as counter, _Largest() as largest:
        assert in_one_pass(layer, x, Draw(count=12)).shape == (12, 3, 48)
    assert counter.get_total_flops() == 2 * 3 * 12 * 48 * 64
    assert largest.size < 2 * 4 * 48 * 64


@both
def test_all_layers_show_one_member_and_members_take_turns(family: str) -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    bnn.bayesianize_(net, family, **{SIZES[family]: 3}, **({"init_sd": 1e-8} if family == "rank1" else {}))
    with torch.no_grad():
        for layer, codes in zip(net, ([1.0, 2.0, 3.0], [1.0, 10.0, 100.0]), strict=True):
            r, s = layer.members()
            layer.shared_weight.fill_(1.0)
            r.fill_(1.0)
            s.copy_(torch.tensor(codes)[:, None])
    got = bnn.draws(net, torch.ones(1, 1), samples=12).flatten()
    torch.testing.assert_close(got.sort().values, torch.tensor([1.0, 20.0, 300.0]).repeat_interleave(4))
    assert bnn.draws(net, torch.ones(1, 1)).shape[0] == 21  # 20, rounded up
    alone = {round(net(torch.ones(1, 1)).item()) for _ in range(40)}
    assert alone == {1, 20, 300}


@both
def test_a_step_with_a_draw_for_each_member_trains_all_of_them(family: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    bnn.bayesianize_(net, family, **{SIZES[family]: 5})
    elbo = bnn.ELBO(net, 10, "categorical", samples=5, kl_weight=0.0)
    elbo(torch.randn(8, 1, 3, 3), torch.randint(2, (8,))).loss.backward()
    for layer in (net[0], net[3]):
        for factors in layer.members():
            assert (factors.grad.abs().sum(1) > 0).all()
    assert all((p.grad is not None) for p in net.parameters())


def test_members_of_different_families_must_be_as_many() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"ensemble_size must agree; got \{'0': 3, '1': 4\}"):
        bnn.bayesianize_(net, {"0": {"inference": "rank1", "components": 3}, "1": "batchensemble"})
    bnn.bayesianize_(net, {"1": "rank1"})
    with pytest.raises(ValueError, match=r"ensemble_size must agree; got \{'1': 4, '0': 2\}"):
        bnn.bayesianize_(net, {"0": "batchensemble"}, ensemble_size=2)


@pytest.mark.parametrize(
    ("family", "option", "value"),
    [
        ("rank1", "components", 0),
        ("rank1", "prior_mean", float("nan")),
        ("rank1", "prior_sd", 0),
        ("rank1", "init_sd", -1.0),
        ("rank1", "max_sd", 0),
        ("rank1", "member_sd", -0.1),
        ("batchensemble", "ensemble_size", 2.5),
        ("batchensemble", "member_sd", "0.1"),
    ],
)
def test_bad_values_are_named(family: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option}.*{value!r}"):
        bayesian_from_template(nn.Linear(3, 2), family, **{option: value})


def test_a_cap_holds() -> None:
    layer = bayesian_from_template(nn.Linear(3, 2), "rank1", max_sd=0.05, init_sd=1.0)
    for sds in layer.sds():
        torch.testing.assert_close(sds, torch.full_like(sds, 0.05))
    assert "max_sd=0.05" in repr(layer)
