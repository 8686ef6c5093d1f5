"""Points keep what follows from their parameters between calls without gradients: W, if it is small, and W = C A_c as
two plain layers. The same function, and never out of date."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import LAYER_TYPES, LayerType, always, ids
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bnn
from bnn.bayesianize import bayesian_from_template
from bnn.functional.cost import Size, Way, cost
from bnn.nn.families import inducing

CASES = [case for case in LAYER_TYPES if math.prod(case.input_shape)]
POINT: dict[str, Any] = {"max_sd_u": 0, "inducing_rows": 2, "inducing_cols": 3}


@pytest.fixture(autouse=True)
def _dense(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, Way.DENSE)


def point(case: LayerType, kernel: str = "paper") -> Any:
    return bayesian_from_template(case.layer(), "inducingdeterministic", kernel=kernel, **POINT).double()


def plain(layer: Any, case: LayerType) -> nn.Module:
    """The plain layer with the layer's mean weights."""
    own = case.layer().double()
    own.load_state_dict({"weight": layer.weight, "bias": layer.bias} if layer.has_bias else {"weight": layer.weight})
    return own


def kept(layer: Any) -> Any:
    with torch.no_grad():
        return layer.posterior().built


@pytest.mark.parametrize("kernel", ["paper", "split"])
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
@torch.no_grad()
def test_outputs_are_those_of_the_plain_layer(case: LayerType, kernel: str) -> None:
    torch.manual_seed(0)
    layer, each = point(case, kernel), torch.randn(3, *case.input_shape, dtype=torch.double)
    like = plain(layer, case)
    for _ in range(2):  # the second time with what is kept
        torch.testing.assert_close(layer(each[0]), like(each[0]))
    torch.testing.assert_close(bnn.draws(layer, each[0], 3), like(each[0]).expand(3, *like(each[0]).shape))


@torch.no_grad()
def test_inputs_that_differ_between_draws() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(12, 2))
    inference = {"0": {"inference": "ffg", "init_sd": 0.3}, "2": "inducingdeterministic", "4": "inducingdeterministic"}
    bnn.bayesianize_(net, inference, **POINT)
    with bnn.frozen_draw(net, 1):
        want = net(torch.ones(2, 2, 4, 4))
    draws = bnn.draws(net, torch.ones(2, 2, 4, 4), 5, generator=torch.Generator().manual_seed(1))
    assert draws.shape == (5, *want.shape)
    assert kept(net[2]) is not None
    hidden = nn.Conv2d(4, 3, 1)
    hidden.load_state_dict({"weight": net[2].weight, "bias": net[2].bias})
    net[2] = hidden
    again = bnn.draws(net, torch.ones(2, 2, 4, 4), 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws, again)
    assert not torch.equal(draws[0], draws[1])


def change_mean(layer: Any) -> None:
    layer.inducing_mean.data.numpy()[0, 0] += 1


def change_z(layer: Any) -> None:
    layer.z_row.data[0] += 1


def change_d(layer: Any) -> None:
    layer._d_col.data += 1


@pytest.mark.parametrize("change", [change_mean, change_z, change_d])
@torch.no_grad()
def test_it_follows_every_parameter(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    case = CASES[0]
    layer, x = point(case), torch.randn(case.input_shape, dtype=torch.double)
    before = layer(x)
    change(layer)
    assert not torch.equal(layer(x), before)
    torch.testing.assert_close(layer(x), plain(layer, case)(x))


def test_gradients_flow_to_parameters_and_through_frozen_ones() -> None:
    torch.manual_seed(0)
    case = CASES[0]
    layer, x = point(case), torch.randn(case.input_shape, dtype=torch.double, requires_grad=True)
    with torch.inference_mode():
        layer(x)  # what is kept must serve autograd, too
    layer(x).sum().backward()
    assert all(p.grad is not None for p in (layer.z_row, layer.z_col, layer.inducing_mean))
    assert x.grad is not None
    want = x.grad.clone()
    layer.requires_grad_(False)
    x.grad = None
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, want)


@torch.no_grad()
def test_only_points_that_are_small_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[0]
    x = case.input().double()
    noisy: Any = bayesian_from_template(case.layer(), "inducing", inducing_rows=2).double()
    noisy(x)
    assert kept(noisy) is None
    monkeypatch.setattr(inducing, "BUILT_BYTES", 8 * 5 * 4)
    large = point(case)  # with its bias it is larger
    large(x)
    assert kept(large) is None
    monkeypatch.setattr(inducing, "BUILT_BYTES", 8 * 6 * 4)
    large(x)
    assert kept(large) is not None


@torch.no_grad()
def test_a_layer_that_runs_through_its_factors_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, Way.PER_ROW)
    layer = point(CASES[0])
    layer(CASES[0].input().double())
    assert kept(layer) is None
    first, second = layer.posterior().pair
    rows, columns = layer.matrix_shape()
    assert sum(part.numel() for part in (*first, *second) if part is not None) == (
        len(layer.z_col) * (rows + columns - layer.has_bias) + layer.has_bias * layer.d_out
    )


@pytest.mark.parametrize("kernel", ["paper", "split"])
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
@torch.no_grad()
def test_two_plain_layers_give_what_one_gives(case: LayerType, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    always(monkeypatch, Way.PER_ROW)
    layer, each = point(case, kernel), torch.randn(3, *case.input_shape, dtype=torch.double)
    like = plain(layer, case)
    for _ in range(2):  # the second time with what is kept
        found, want = layer(each[0]), like(each[0])
        torch.testing.assert_close(found, want)
        assert found.stride() == want.stride()
    torch.testing.assert_close(bnn.draws(layer, each[0], 3), like(each[0]).expand(3, *like(each[0]).shape))
    change_mean(layer)
    torch.testing.assert_close(layer(each[1]), plain(layer, case)(each[1]))


class Operations(TorchDispatchMode):
    """How often products and convolutions run."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if name in ("convolution", "mm", "addmm", "bmm", "baddbmm"):
            self.products.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("way", "kernel", "runs"), [(Way.DENSE, "paper", 1), (Way.PER_ROW, "split", 2)])
@torch.no_grad()
def test_with_what_is_kept_only_plain_layers_run(
    way: Way, kernel: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, way)
    conv: Any = bayesian_from_template(nn.Conv2d(3, 4, 3, padding=1), "inducingdeterministic", kernel=kernel, **POINT)
    linear: Any = bayesian_from_template(nn.Linear(6, 5), "inducingdeterministic", **POINT)
    for layer, x, name in ((conv, torch.randn(2, 3, 5, 5), "convolution"), (linear, torch.randn(2, 6), "mm")):
        layer(x)
        with Operations() as counted:
            layer(x)
        assert len(counted.products) == runs, counted.products
        assert all(name in one for one in counted.products)


def test_what_is_at_hand_is_not_paid_for() -> None:
    size = Size(1, 10, 1, 100, 100, 40, 40, residual=False)
    settled = size._replace(settled=True)
    assert cost(Way.DENSE, settled._replace(built=True)) < 0.3 * cost(Way.DENSE, settled) < cost(Way.DENSE, size)
    assert cost(Way.PER_ROW, settled._replace(built=True)) == cost(Way.PER_ROW, settled) < cost(Way.PER_ROW, size)


def test_autocast_gives_what_the_plain_layer_gives() -> None:
    torch.manual_seed(0)
    layer: Any = bayesian_from_template(nn.Linear(6, 5), "inducingdeterministic", **POINT)
    like = nn.Linear(6, 5)
    like.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    x: Tensor = torch.randn(4, 6)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), like(x))
