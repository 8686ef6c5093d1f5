"""`torch.func` differentiates and maps the function that `frozen_draw` holds fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_nets import BY_ID, mlp, unrelated, varies
from helpers import FAMILIES, Family, ids
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

import bnn

CASES = [(family, {}) for family in FAMILIES] + [(BY_ID["diagonal"], {"sampling": "weight"})]
every_family = pytest.mark.parametrize(("family", "options"), CASES, ids=[*ids(FAMILIES), "diagonal-weight"])
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, of jacfwd
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64 rounding
STEP = 1e-5


def make(family: Family, options: dict[str, Any], trains: bool = False) -> Any:
    return mlp(family, **options).double().requires_grad_(trains)


def differences(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Central differences of `function` in every entry of x: (*output, *x)."""
    steps = STEP * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    slopes = [(function(x + step) - function(x - step)) / (2 * STEP) for step in steps]
    return torch.stack(slopes, -1).reshape(*slopes[0].shape, *x.shape)


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, 6, dtype=torch.double)


@every_family
def test_jacobians(family: Family, options: dict[str, Any]) -> None:
    net, x = make(family, options), inputs(2)
    with bnn.frozen_draw(net, 1):
        want = differences(net, x)
        for jacobian in (jacfwd(net)(x), jacrev(net)(x)):
            torch.testing.assert_close(jacobian, want, rtol=1e-6, atol=1e-8)
    assert varies(net, x)


@every_family
def test_hessians(family: Family, options: dict[str, Any]) -> None:
    net, x = make(family, options), inputs(1)

    def loss(z: Tensor) -> Tensor:
        return net(z).square().sum()

    def slope(z: Tensor) -> Tensor:
        z = z.clone().requires_grad_()
        return torch.autograd.grad(loss(z), z)[0]

    with bnn.frozen_draw(net, 1):
        torch.testing.assert_close(hessian(loss)(x), differences(slope, x), rtol=1e-5, atol=1e-7)


@every_family
def test_vmap(family: Family, options: dict[str, Any]) -> None:
    for randomness in ("error", "same", "different"):
        net, x = make(family, options), inputs(3, 2)
        with bnn.frozen_draw(net, 1):
            want = torch.stack([net(z) for z in x])
            torch.testing.assert_close(net(x), want, **EXACT)
            torch.testing.assert_close(vmap(net, randomness=randomness)(x), want, **EXACT)
            torch.testing.assert_close(vmap(vmap(net, randomness=randomness), randomness=randomness)(x), want, **EXACT)
            torch.testing.assert_close(vmap(net, in_dims=1, out_dims=1, randomness=randomness)(x), want, **EXACT)
        assert varies(unrelated(), torch.ones(1, 6))


@every_family
def test_gradients_of_every_input(family: Family, options: dict[str, Any]) -> None:
    net, x = make(family, options, trains=True), inputs(2)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: dict[str, Tensor], z: Tensor) -> Tensor:
        return functional_call(net, parameters, (z[None],)).square().sum()

    with bnn.frozen_draw(net, 1):
        got = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        again = vmap(grad(loss), in_dims=(None, 0), randomness="different")(parameters, x)
        torch.testing.assert_close(again, got, rtol=0, atol=0)
        for i, z in enumerate(x):
            used, output = list(net.parameters()), net(z[None])
            want = torch.autograd.grad(output.square().sum(), used, materialize_grads=True)
            torch.testing.assert_close([got[name][i] for name in parameters], list(want), rtol=1e-7, atol=1e-9)


@every_family
def test_a_transform_inside_a_transform_of_a_larger_function(family: Family, options: dict[str, Any]) -> None:
    """Per-input Jacobians: vmap of jacrev of the network among other functions."""
    net, x = make(family, options), inputs(2)

    def function(z: Tensor) -> Tensor:
        return net(z.sin()).tanh()

    with bnn.frozen_draw(net, 1):
        got = vmap(jacrev(function))(x)
        want = torch.stack([differences(function, z) for z in x])
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
def test_networks_of_one_architecture_at_once(family: Family) -> None:
    """`vmap` over stacked parameters: each set of them is what it is alone."""
    nets, x = [make(family, {}) for _ in range(2)], inputs(3)
    nets[1].load_state_dict({k: v + 0.01 for k, v in nets[0].state_dict().items()})
    stacked = {k: torch.stack([v, nets[1].state_dict()[k]]) for k, v in nets[0].state_dict().items()}
    with bnn.frozen_draw(nets[0], 1):
        got = vmap(lambda state: functional_call(nets[0], state, (x,)))(stacked)
        for output, net in zip(got, nets, strict=True):
            want = functional_call(nets[0], net.state_dict(), (x,))
            torch.testing.assert_close(output, want, rtol=1e-7, atol=1e-9)
