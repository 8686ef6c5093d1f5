"""Modes of a network for the length of a block."""

from __future__ import annotations

import contextlib

from torch import nn

from bnn._engine.inputs import evaluating, same_mode_after


def mixed() -> nn.Sequential:
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    net[1][0].eval()  # type: ignore[index]
    return net


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


def test_every_module_goes_back_to_its_mode_whatever_happens() -> None:
    net = mixed()
    before = modes(net)
    with contextlib.suppress(KeyError), same_mode_after(net):
        net.train()
        net[0].eval()
        raise KeyError
    assert modes(net) == before == [True, True, True, False, True]


def test_evaluation_mode_and_back() -> None:
    net = mixed()
    before = modes(net)
    with contextlib.suppress(KeyError), evaluating(net):
        assert not any(modes(net))
        raise KeyError
    assert modes(net) == before
    net.eval()
    with evaluating(net):
        assert not any(modes(net))
    assert not any(modes(net))
