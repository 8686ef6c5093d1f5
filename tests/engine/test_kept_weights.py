"""A small point keeps its W between calls without gradients: the same function, and never out of date."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import LAYER_TYPES, LayerType, always, ids
from torch import Tensor, nn

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


def test_what_is_at_hand_is_not_paid_for() -> None:
    size = Size(1, 10, 1, 100, 100, 40, 40, residual=False)
    assert cost(Way.DENSE, size._replace(built=True)) < 0.3 * cost(Way.DENSE, size)
    assert cost(Way.PER_ROW, size._replace(built=True)) == cost(Way.PER_ROW, size)


def test_autocast_gives_what_the_plain_layer_gives() -> None:
    torch.manual_seed(0)
    layer: Any = bayesian_from_template(nn.Linear(6, 5), "inducingdeterministic", **POINT)
    like = nn.Linear(6, 5)
    like.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    x: Tensor = torch.randn(4, 6)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), like(x))
