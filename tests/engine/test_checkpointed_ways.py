"""Gradient checkpointing beside BatchNorm, and of layers that draw their outputs without weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawn_nets import nothing_is_open, ways_without_weights
from helpers import SIZES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnn


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    yield
    assert nothing_is_open()


class Checkpointed(nn.Module):
    """Its second half is computed again during backward, if asked for."""

    def __init__(self, **checkpoint: Any) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.options = checkpoint

    def half(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(x)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        return checkpoint(self.half, h, **self.options) if self.options else self.half(h)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("without_weights", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"sampling": "auto"}, {"sampling": "local"}, {"q_inducing": "ensemble"}],
    ids=["auto", "local", "members"],
)
def test_checkpointing_a_part_is_right(
    options: dict[str, Any], without_weights: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same network without checkpointing, from the same random state."""
    if without_weights:
        ways_without_weights(monkeypatch)
    x, nets = torch.randn(4, 3), [Checkpointed(), Checkpointed(use_reentrant=False)]
    after = []
    for net in nets:
        bnn.bayesianize_(net, "inducing", init_lamda=0.5, init="paper", **SIZES, **options)
        net.train(training).load_state_dict(nets[0].state_dict())
        torch.manual_seed(1)
        net(x).square().sum().backward()
        after.append(torch.rand(1))
    want, got = ({name: p.grad for name, p in net.named_parameters()} for net in nets)
    assert all(grad.abs().sum() > 0 for grad in want.values())
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, msg=name)
    assert torch.equal(*after)  # and no random stream was moved


def test_checkpointing_the_whole_is_right_too() -> None:
    x, net = torch.randn(4, 3), Checkpointed()
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", init="paper", init_lamda=0.5, **SIZES)
    grads = []
    for run in (net, lambda x: checkpoint(net, x, use_reentrant=False)):
        net.zero_grad()
        torch.manual_seed(1)
        run(x).square().sum().backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(*grads, strict=True))


def test_checkpointing_that_forgets_the_random_state_is_an_error() -> None:
    net = Checkpointed(use_reentrant=False, preserve_rng_state=False)
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", **SIZES)
    loss = net(torch.randn(4, 3)).sum()
    torch.rand(1)
    with pytest.raises(RuntimeError, match="runs again inside backward, but not as it ran forward"):
        loss.backward()
