"""`frozen_draw`: one function of the posterior, whose parameters may change; blocks in and beside each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawn_nets import Twice, noisy, nothing_is_open, ways_without_weights
from helpers import FAMILIES, SIZES, Family, ids, set_noise_, small_net
from torch import nn

import bnn

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    yield
    assert nothing_is_open()


@every_family
def test_a_frozen_draw_is_one_function(family: Family) -> None:
    net, x = small_net(family).double(), torch.randn(6, 2, 4, 4).double()
    set_noise_(net, 0.3)
    with bnn.frozen_draw(net, seed=3):
        want = net(x)
        torch.testing.assert_close(net(x), want, rtol=0, atol=0)
        torch.testing.assert_close(torch.cat([net(part) for part in x.split([1, 2, 3])]), want)
        torch.testing.assert_close(net(x.flip(0)).flip(0), want)
        torch.rand(5)  # other randomness does not matter
        torch.testing.assert_close(net[3](net[:3](x)), want)  # nor whether layers run on their own
    outside = [net(x) for _ in range(8)]
    assert len({float(y.flatten()[0].detach()) for y in outside}) > 1
    with bnn.frozen_draw(net, seed=3):
        assert torch.equal(net(x), want)
    others = []
    for seed in (4, 5, 6, 7, 8, 2**40, -1):
        with bnn.frozen_draw(net, seed=seed):
            others.append(net(x))
    assert any(not torch.allclose(y, want) for y in others)
    assert len({float(y.flatten()[0].detach()) for y in others}) > 1


@every_family
def test_a_frozen_draw_lets_gradients_flow_and_parameters_change(family: Family) -> None:
    net, x = small_net(family).double(), torch.randn(2, 2, 4, 4).double()
    set_noise_(net, 0.1)
    layer = net[3]
    name, parameter = next(iter(layer.named_parameters()))
    direction = torch.randn_like(parameter)
    with bnn.frozen_draw(net, 1):
        loss = net(x).square().sum()
        loss.backward()
        slope = (parameter.grad * direction).sum().item()
        values = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                parameter.add_(step * direction)
                values.append(net(x).square().sum().item())
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-4), name


@every_family
def test_several_draws_inside_are_that_one_function(family: Family) -> None:
    """Of an objective; `bnn.draws` names draws of its own."""
    net, x, seen = small_net(family).double(), torch.randn(3, 2, 4, 4).double(), []
    set_noise_(net, 0.3)
    elbo = bnn.ELBO(net, num_data=3, likelihood=lambda y, _: seen.append(y) or y.square(), samples=3)
    with bnn.frozen_draw(net, 3):
        want = net(x)
        for _ in range(2):
            elbo(x, None)
        drawn = bnn.draws(net, x, samples=12)
    assert len(seen) == 6
    for output in seen:
        torch.testing.assert_close(output, want)
    assert len(drawn.flatten(1).unique(dim=0)) > 1


def test_layers_draw_different_noise() -> None:
    net = noisy(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), init_sd=1.0)
    net[1].load_state_dict(net[0].state_dict())
    x = torch.ones(1, 3)
    with bnn.frozen_draw(net, 0):
        assert not torch.allclose(net[0](x), net[1](x))


@pytest.mark.parametrize("options", [{"sampling": "auto"}, {"sampling": "local"}], ids=["auto", "local"])
def test_a_frozen_layer_draws_its_weights(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is cheaper: all inputs see one function."""
    ways_without_weights(monkeypatch)
    net = noisy(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), "inducing", **options)
    x = torch.ones(4, 3)
    assert len(net(x).unique(dim=0)) == 4
    with bnn.frozen_draw(net, 1):
        torch.testing.assert_close(net(x), net(x)[:1].expand(4, 2))


def test_two_networks_are_frozen_at_once_and_the_innermost_block_wins() -> None:
    a, b, x = noisy(nn.Linear(3, 2)), noisy(nn.Linear(3, 2)), torch.ones(1, 3)
    with bnn.frozen_draw(a, 1):
        in_a, loose = a(x), [b(x), b(x)]
        with bnn.frozen_draw(b, 1):
            in_b = b(x)
            assert torch.equal(a(x), in_a)
            with bnn.frozen_draw(a, 2):
                assert not torch.equal(a(x), in_a)
                assert torch.equal(b(x), in_b)
            assert torch.equal(a(x), in_a)
        assert not torch.equal(b(x), in_b)
    assert not torch.equal(*loose)
    assert not torch.equal(a(x), in_a)


def test_a_frozen_part_of_a_larger_network() -> None:
    inner = noisy(nn.Linear(3, 2))
    outer, x = nn.Sequential(inner, nn.Linear(2, 2)), torch.ones(1, 3)
    bnn.bayesianize_(outer, {"1": "ffg"}, local_reparameterization=False)
    set_noise_(outer[1], 1e-9)
    with bnn.frozen_draw(inner, 3):
        torch.testing.assert_close(outer(x), outer(x))
        want = inner(x)
    with bnn.frozen_draw(outer, 3), bnn.frozen_draw(inner, 3):
        assert torch.equal(inner(x), want)
    assert not torch.allclose(outer(x), outer(x), atol=1e-4)


def test_a_frozen_draw_ends_with_an_error() -> None:
    net, x = noisy(nn.Linear(3, 2)), torch.ones(1, 3)
    with pytest.raises(ZeroDivisionError), bnn.frozen_draw(net):
        _ = 1 / 0
    assert not torch.equal(net(x), net(x))


def test_a_block_is_entered_once_at_a_time() -> None:
    net, x = noisy(nn.Linear(3, 2)), torch.ones(1, 3)
    block = bnn.frozen_draw(net, 1)
    with block:
        want = net(x)
        with pytest.raises(RuntimeError, match="entered already"), block:
            pass
        assert torch.equal(net(x), want)
    with block:  # one after the other is fine
        assert torch.equal(net(x), want)


@pytest.mark.parametrize(
    "wrong", [(None, 1), ("net", 1), (nn.Linear, 1), (nn.Linear(1, 1), "1"), (nn.Linear(1, 1), 0.5)]
)
def test_what_cannot_be_frozen_is_refused(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="takes a network and an integer seed"):
        bnn.frozen_draw(*wrong)


def test_another_threads_block_does_not_reach_here() -> None:
    net, x = noisy(Twice()), torch.ones(1, 3)
    inside, done = threading.Event(), threading.Event()
    got: dict[str, Any] = {}

    def frozen() -> None:
        with bnn.frozen_draw(net, 1):
            got["frozen"] = net(x)[0]
            inside.set()
            done.wait(10)
            got["frozen again"] = net(x)[0]

    thread = threading.Thread(target=frozen)
    thread.start()
    inside.wait(10)
    first, second = net(x)[0], net(x)[0]
    done.set()
    thread.join()
    assert not torch.equal(first, second)
    assert torch.equal(got["frozen"], got["frozen again"])


def test_frozen_draw_freezes_an_elbo_of_several_samples() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", ensemble_size=4, init="paper", **SIZES)
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=2)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    with bnn.frozen_draw(net, 3):
        assert len({elbo(x, y).data.item() for _ in range(4)}) == 1
