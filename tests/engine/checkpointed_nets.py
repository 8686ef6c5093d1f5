"""Networks with parts that may be checkpointed, in every kind of posterior, and their gradients from a fixed seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from helpers import set_noise_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnn

WHAT = ["a layer", "a part", "the whole", "the whole and a part"]


class Net(nn.Module):
    """A head that cannot be folded, a dropout, and a tail; any of them may be checkpointed."""

    def __init__(self, p: float = 0.0, folds: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.dropout, self.folds = nn.Dropout(p), folds
        self.what, self.options = "", {}

    def tail(self, h: Tensor) -> Tensor:
        return self.c(self.dropout(torch.tanh(self._part("a layer", self.b, h))))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if not self.folds:
            h = h * (1 + 0 * h.sum().item())
        return self._part("a part", self.tail, h)

    def _part(self, name: str, run: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        return checkpoint(run, h, **self.options) if self.what.endswith(name) else run(h)


def ffg(net: nn.Module) -> nn.Module:
    bnn.bayesianize_(net, "ffg")
    return net


def fcg(net: nn.Module) -> nn.Module:
    bnn.bayesianize_(net, "fcg")
    return net


def inducing(net: nn.Module, **options: Any) -> nn.Module:
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=3, **options)
    return net


def with_global(net: nn.Module) -> nn.Module:
    bnn.register_global_inducing_weights_(inducing(net), 2, 2)
    return net


def plain_ensemble(net: nn.Module) -> nn.Module:
    return bnn.Ensemble(net, members=4)


KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ffg": ffg,
    "fcg": fcg,
    "diagonal": inducing,
    "weight": lambda net: inducing(net, sampling="weight"),
    "ensemble": lambda net: inducing(net, q_inducing="ensemble", ensemble_size=4),
    "global": with_global,
    "Ensemble": plain_ensemble,
    "Ensemble, inducing": lambda net: inducing(plain_ensemble(net)),
}


@functools.cache
def make(kind: str, p: float = 0.0, folds: bool = True) -> Any:
    """A network of a kind, made once for all tests: they change no parameter."""
    net = KINDS[kind](Net(p, folds))
    set_noise_(net, 0.3)
    return net


def checkpoint_(net: nn.Module, what: str, **options: Any) -> None:
    """Says which part of every network in `net` is checkpointed, in place; "" is none."""
    for module in net.modules():
        if isinstance(module, Net):
            module.what, module.options = what, {"use_reentrant": False} | options


def run(net: nn.Module, x: Tensor, what: str, **options: Any) -> Tensor:
    """The output with `what` checkpointed."""
    checkpoint_(net, what, **options)
    whole = what.startswith("the whole")
    return checkpoint(net, x, **({"use_reentrant": False} | options)) if whole else net(x)


def gradients(net: nn.Module, loss: Callable[[], Tensor], backward: Callable[[Tensor], Any] = Tensor.backward) -> Any:
    """The loss from a fixed seed, and the gradient of every parameter."""
    net.zero_grad()
    torch.manual_seed(1)
    value = loss()
    backward(value)
    found = {name: torch.zeros(()) if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}
    assert any(grad.abs().sum() > 0 for grad in found.values())
    return value.detach(), found


def compare(net: nn.Module, loss: Callable[[str], Tensor], what: str, backward: Any = Tensor.backward) -> None:
    """Checks `loss(what)` and its gradients against `loss("")`, which checkpoints nothing."""
    same(gradients(net, lambda: loss(what), backward), gradients(net, lambda: loss(""), backward))


def inputs() -> Tensor:
    return torch.randn(5, 6, requires_grad=True)


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
