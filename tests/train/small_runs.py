"""Networks, data and options that the tests of training share: small enough to run in a tenth of a second."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bnn

HERE = Path(__file__).parent


def plain_net(norm: bool = True, out: int = 3) -> nn.Sequential:
    """A network for inputs (N, 4), the same every time."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(4, 8), *norms, nn.ReLU(), nn.Linear(8, out))


def bayesian_net(norm: bool = True, out: int = 3, **options: Any) -> nn.Sequential:
    """The same, converted."""
    net = plain_net(norm, out)
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, **options)
    return net


def blobs(n: int = 30, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Three classes that can be told apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    return torch.eye(4)[y] * 2 + torch.randn(n, 4, generator=generator), y


def run(net: nn.Module, data: Any = None, **options: Any) -> Any:
    """`bnn.fit` without a word, on `blobs` unless told otherwise."""
    defaults = {"epochs": 2, "batch_size": 10, "seed": 7, "tensorboard": False, "progress": False}
    if isinstance(data, DataLoader):
        del defaults["batch_size"]
    return bnn.fit(net, blobs() if data is None else data, **(defaults | options))


def values(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, by value."""
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def same(one: nn.Module | dict[str, Tensor], other: nn.Module | dict[str, Tensor]) -> bool:
    """Whether all bits agree."""
    first, second = (x.state_dict() if isinstance(x, nn.Module) else x for x in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def environment(**extra: str) -> dict[str, str]:
    """For a program of its own: one thread, a free port, nothing that a launcher left behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")}
    root = os.fspath(HERE.parent.parent)
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH", "")]))
    return kept | {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(port), "PYTHONPATH": path} | extra


def program(name: str) -> list[str]:
    """The command that runs a program beside the tests."""
    return [sys.executable, os.fspath(HERE / name)]
