"""Pairings can be subclassed, and torch's parametrize, which subclasses them, works on converted layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import SIZES, sizes_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import bnn
from bnn.nn.base import PAIRINGS, families, pairing


def test_a_subclass_of_a_pairing_is_a_layer_like_it_and_takes_no_place_in_the_registry() -> None:
    known = dict(PAIRINGS.known)

    class Mine(bnn.nn.FFGLinear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert known == PAIRINGS.known
    assert pairing("ffg", nn.Linear) is bnn.nn.FFGLinear
    layer, x = Mine(6, 3, init_sd=1e-6), torch.randn(4, 6)
    torch.testing.assert_close(layer(x), 2 * nn.functional.linear(x, layer.weight, layer.bias), atol=1e-3, rtol=0)
    assert layer.kl_divergence().isfinite()
    assert bnn.draws(nn.Sequential(layer), x, samples=5).shape == (5, 4, 3)


def test_a_subclass_with_a_name_of_its_own_is_a_new_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PAIRINGS, "known", dict(PAIRINGS.known))
    named: Any = type("Named", (bnn.nn.FFGLinear,), {"family": "named"})
    assert "named" in families()
    assert pairing("named", nn.Linear) is named


@pytest.mark.parametrize(
    ("inference", "name"),
    [("inducing", "z_row"), ("ffg", "weight_mean"), ("fcg", "_scale_tril"), ("inducing", "_d_row")],
)
def test_a_converted_layer_can_be_parametrized(inference: str, name: str) -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x

    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    bnn.bayesianize_(net, inference, **sizes_of(inference))
    before = net[0].get_parameter(name).detach().clone()
    parametrize.register_parametrization(net[0], name, Half())
    torch.testing.assert_close(getattr(net[0], name).detach(), 0.5 * before)
    assert net(x).shape == bnn.draws(net, x, samples=2)[0].shape == (5, 3)
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical")
    elbo(x, torch.zeros(5, dtype=torch.long)).loss.backward()
    original = net[0].parametrizations[name].original
    assert original.grad is not None
    assert original.grad.abs().sum() > 0
    twin = copy.deepcopy(net)
    twin.load_state_dict(net.state_dict())
    torch.testing.assert_close(bnn.kl_divergence(twin), bnn.kl_divergence(net))
    parametrize.remove_parametrizations(net[0], name)
    assert type(net[0]) is pairing(inference, nn.Linear)
    torch.testing.assert_close(net[0].get_parameter(name).detach(), 0.5 * before)


def test_weight_norm_of_inducing_weights() -> None:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    bnn.bayesianize_(net, "inducing", max_lamda=0, max_sd_u=0, **SIZES)
    want = net(x)
    parametrizations.weight_norm(net[0], "z_row")
    torch.testing.assert_close(net(x), want)
    with pytest.raises(ValueError, match="a parametrized layer cannot start anew"):
        net[0].reset_parameters()
