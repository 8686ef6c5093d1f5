"""Interrupted forwards: ensemble members, networks that go on, calls of the library, every line of torch's modules."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest
import torch
from engine_nets import BY_ID, Members, Stops, agree, converted, mlp, number_members_, raising, unrelated, varies
from torch import Tensor, nn

import bnn

every_error = pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])


@every_error
@pytest.mark.parametrize("call", ["draws", "predict", "ELBO", "frozen_draw"])
def test_calls_of_the_library_end_as_well(call: str, error: type[BaseException]) -> None:
    net = converted(nn.Sequential(nn.Linear(6, 5), Stops(), nn.Linear(5, 3)), BY_ID["diagonal"])
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    net[1].error = error
    net[1].eval()
    calls = {
        "draws": lambda: bnn.draws(net, x, 3),
        "predict": lambda: bnn.predict(net, x, 3),
        "ELBO": lambda: bnn.ELBO(net, 4, "categorical", samples=2)(x, y),
    }
    with pytest.raises(error) as kept, bnn.frozen_draw(net, 1) if call == "frozen_draw" else contextlib.nullcontext():
        calls.get(call, lambda: net(x))()
    assert kept.value.__traceback__ is not None
    assert (net.training, net[0].training, net[1].training) == (True, True, False)
    net[1].error = None
    assert varies(unrelated(), x)
    assert varies(net[0], x)
    assert varies(net, x)


@every_error
def test_members_agree_in_the_next_forward(error: type[BaseException]) -> None:
    net, x = Members(), torch.ones(1, 1)
    for layer in net.layers[:2]:
        handle = layer.register_forward_hook(raising(error))
        with pytest.raises(error) as kept:
            net(x)
        handle.remove()
        outputs = [net(x) for _ in range(40)]
        assert all(map(agree, outputs))
        assert len({y[0, 0].item() for y in outputs}) == 4  # one is missed with probability 4 (3/4)^40 = 4e-5
        pairs = {tuple(int(layer(x).abs().round()) for layer in net.layers[:2]) for _ in range(60)}
        assert any(a != b for a, b in pairs)  # layers on their own pick their own
        del kept


class Goes(nn.Module):
    """Goes on after its inner network was interrupted."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.stops = Stops()
        inner = Members(depth=1)
        inner.layers.append(self.stops)
        self.a, self.b, self.known = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), [inner]
        if not listed:
            self.inner = inner
        number_members_(self, ["a", "b"])

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        with contextlib.suppress(KeyboardInterrupt, SystemExit, GeneratorExit):
            self.known[0](x)
        return torch.cat([first, self.b(x), self.a(x)], -1)


@every_error
@pytest.mark.parametrize("listed", [False, True], ids=["child", "in a list"])
def test_a_network_that_goes_on_after_an_inner_interrupt_shows_one_member(
    listed: bool, error: type[BaseException]
) -> None:
    net, x = Goes(listed), torch.ones(1, 1)
    net.stops.error = error
    assert all(agree(net(x)) for _ in range(30))
    assert varies(unrelated(), torch.ones(1, 6))


class CallsItself(nn.Module):
    """A root that goes on after a call of itself was interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(1, 1, bias=False)
        number_members_(self)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        here = self.leaf(x)
        if not depth:
            raise KeyboardInterrupt
        with contextlib.suppress(KeyboardInterrupt):
            self(x, depth - 1)
        return torch.cat([here, self.leaf(x)], -1)


def test_a_root_that_calls_itself_and_goes_on_shows_one_member_and_ends() -> None:
    net, x = CallsItself(), torch.ones(1, 1)
    assert all(agree(net(x)) for _ in range(20))
    assert varies(net, x)
    assert varies(unrelated(), torch.ones(1, 6))


def test_an_interrupt_at_any_line_of_torchs_modules_leaves_nothing_open() -> None:
    net, other, x = mlp(BY_ID["ffg-dense"]), unrelated(), torch.randn(2, 6)
    left, folder = 0, nn.Module.__call__.__code__.co_filename.rpartition("/")[0]

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" and frame.f_code.co_filename.startswith(folder):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    for line in range(1, 5000):
        left, before = line, sys.gettrace()
        try:
            sys.settrace(trace)
            net(x)
        except KeyboardInterrupt:
            sys.settrace(before)
            assert not torch.equal(other(x), other(x)), f"line {line}"
        else:
            break
        finally:
            sys.settrace(before)
    assert 20 < line < 4999
