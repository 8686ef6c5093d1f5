"""Networks and checks that the tests of the engine share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from helpers import FAMILIES, Family, set_noise_
from torch import Tensor, nn

import bnn

BY_ID = {family.id: family for family in FAMILIES}


def converted(net: nn.Module, family: Family, sd: float = 0.3, **options: Any) -> Any:
    """`net` with posteriors of `family` that are wide enough to see."""
    bnn.bayesianize_(net, family.inference, **(family.options | options))
    set_noise_(net, sd)
    return net


def mlp(family: Family, sd: float = 0.3, **options: Any) -> Any:
    """A converted network for inputs (N, 6), with outputs (N, 3)."""
    return converted(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), family, sd, **options)


def unrelated() -> Any:
    """A Bayesian layer for inputs (N, 6) that was never in any network."""
    return bnn.nn.FFGLinear(6, 3, init_sd=1.0, local_reparameterization=False)


def varies(call: Callable[..., Tensor], *args: Any) -> bool:
    """Whether calls differ: a fair ensemble of two members fails to show it with probability 1e-9."""
    first = call(*args)
    return any(not torch.equal(call(*args), first) for _ in range(30))


def one_function(call: Callable[..., Tensor], *args: Any) -> bool:
    """Whether all calls are equal."""
    first = call(*args)
    return all(torch.equal(call(*args), first) for _ in range(5))


class Stops(nn.Module):
    """Raises `error` when armed."""

    error: type[BaseException] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return x


def raising(error: type[BaseException]) -> Any:
    def hook(*_: Any) -> None:
        raise error

    return hook


class Known:
    """A converted network that knows which functions the seeds 1 to 4 name."""

    def __init__(self) -> None:
        self.net = mlp(BY_ID["ffg-dense"]).requires_grad_(False)
        self.x = torch.linspace(-1, 1, 12).reshape(2, 6)
        self.named = {}
        for seed in range(1, 5):
            with self.frozen(seed):
                self.named[seed] = self.net(self.x)

    def frozen(self, seed: int) -> Any:
        return bnn.frozen_draw(self.net, seed)

    @contextlib.contextmanager
    def wrapped(self, seed: int) -> Iterator[str]:
        """`frozen_draw` in a context manager of the user's own."""
        with self.frozen(seed):
            yield "inside"

    def shows(self, seed: int) -> bool:
        """Whether the network is the function that `seed` names, here and now."""
        return all(torch.equal(self.net(self.x), self.named[seed]) for _ in range(2))

    def varies(self) -> bool:
        """Whether the network is random, here and now."""
        return varies(self.net, self.x)


class Members(nn.Module):
    """Layers that return 1, ..., `size`: the number of the ensemble member that each of them shows."""

    def __init__(self, size: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(depth))
        number_members_(self, size=size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], -1)


def number_members_(net: nn.Module, keys: list[str] | None = None, size: int = 4) -> None:
    """Converts layers of `net`, 1 x 1 and without bias, in place, to ensembles of the weights 1, ..., `size`."""
    options = {"inference": "inducing", "inducing_rows": 1, "q_inducing": "ensemble", "ensemble_size": size}
    bnn.bayesianize_(net, dict.fromkeys(keys or [name for name, _ in net.named_children()], options), max_lamda=0)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, bnn.nn.InducingLinear):
                layer.inducing_mean.copy_(torch.arange(1.0, size + 1)[:, None, None])


def agree(output: Tensor) -> bool:
    """Whether all layers showed the same member."""
    return len(output.abs().round().unique()) == 1
