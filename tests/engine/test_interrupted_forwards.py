"""A forward that ends in any way, Ctrl-C and SystemExit included, leaves nothing open."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_nets import BY_ID, Stops, mlp, one_function, raising, unrelated, varies
from helpers import FAMILIES, SIZES, Family, ids
from torch import Tensor, nn

import bnn

ERRORS: list[type[BaseException]] = [KeyboardInterrupt, SystemExit, GeneratorExit]
WHERE = ["child", "pre-hook", "hook", "root's pre-hook", "root's hook", "inner network", "network in a list"]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
every_error = pytest.mark.parametrize("error", ERRORS)
every_place = pytest.mark.parametrize("where", WHERE)
with_and_without_gradients = pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])


class Around(nn.Module):
    """Runs `inner` between two layers of its own: a child, or (`listed`) a network that it only knows of."""

    def __init__(self, inner: nn.Module, listed: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(3, 3)
        self.known = [inner]
        if not listed:
            self.inner = inner
        bnn.bayesianize_(self, {"first": "inducing", "last": "inducing"}, init_lamda=0.3, **SIZES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.known[0](self.first(x)))


def interrupt(net: Any, where: str, error: type[BaseException], grad: bool = True) -> BaseException:
    """Runs `net` (layer, Stops, ..., layer) until it is interrupted; what was raised keeps its traceback alive."""
    runs, stops, handle = net, Stops(), None
    middle, net[1] = net[1], stops
    if where == "child":
        stops.error = error
    elif where.endswith("hook"):
        module = net if where.startswith("root") else net[2]
        register = module.register_forward_pre_hook if "pre" in where else module.register_forward_hook
        handle = register(raising(error))
    else:
        stops.error, runs = error, Around(net, listed=where == "network in a list")
    with torch.set_grad_enabled(grad), pytest.raises(error) as kept:
        runs(torch.randn(4, 6))
    stops.error, net[1] = None, middle
    if handle is not None:
        handle.remove()
    assert kept.value.__traceback__ is not None
    return kept.value


def other_state(family: Family) -> dict[str, Tensor]:
    return mlp(family, sd=0.2).state_dict()


def fresh_weight(net: Any, family: Family) -> Tensor:
    """The posterior mean of the first layer of a new network with the same state dict."""
    fresh = mlp(family)
    fresh.load_state_dict(net.state_dict())
    return fresh[0].weight


# ---- wherever and whatever it was ------------------------------------------------------------------------------------


@every_error
@every_place
def test_an_unrelated_layer_is_random_and_trains(where: str, error: type[BaseException]) -> None:
    for grad in (True, False):
        kept = interrupt(mlp(BY_ID["diagonal"]), where, error, grad)
        layer, x = unrelated(), torch.randn(2, 6)
        assert varies(layer, x)
        layer(x).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())
        del kept


@every_error
@every_place
def test_means_follow_their_parameters(where: str, error: type[BaseException]) -> None:
    for grad in (True, False):
        family = BY_ID["diagonal"]
        net = mlp(family)
        kept = interrupt(net, where, error, grad)
        with torch.no_grad():
            old = net[0].weight.clone()
            net[0].z_row.mul_(-1)
            assert torch.equal(net[0].weight, fresh_weight(net, family))
            assert not torch.allclose(net[0].weight, old)
        net.load_state_dict(other_state(family))
        assert torch.equal(net[0].weight, fresh_weight(net, family))
        del kept


@every_error
@every_place
def test_layers_on_their_own_vary(where: str, error: type[BaseException]) -> None:
    net, x = mlp(BY_ID["diagonal"], sampling="weight"), torch.randn(2, 6)
    kept = interrupt(net, where, error)
    assert varies(net[0], x)
    assert varies(net[2], torch.randn(2, 5))
    assert varies(net, x)
    with bnn.frozen_draw(net, 1):
        assert one_function(net, x)
    assert varies(net[0], x)
    del kept


# ---- every family ----------------------------------------------------------------------------------------------------


@every_family
def test_every_family_is_random_again(family: Family) -> None:
    net, x = mlp(family), torch.randn(2, 6)
    kept = interrupt(net, "child", KeyboardInterrupt)
    assert varies(unrelated(), x)
    assert varies(net[0], x)
    assert varies(net, x)
    del kept


@every_family
def test_every_familys_mean_follows_a_new_state_dict(family: Family) -> None:
    net = mlp(family)
    with torch.no_grad():
        kept = interrupt(net, "child", KeyboardInterrupt, grad=False)
        net.load_state_dict(other_state(family))
        assert torch.equal(net[0].weight, fresh_weight(net, family))
        assert torch.equal(bnn.draws(net, torch.ones(1, 6), 0), bnn.draws(copy.deepcopy(net), torch.ones(1, 6), 0))
    del kept
