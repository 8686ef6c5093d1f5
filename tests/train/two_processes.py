"""Trains on two processes (gloo) and says what each of them saw; run as a program by test_two_processes.py.

python two_processes.py <folder> <way> <net>: way is "fabric" (this program starts the second process), "torchrun", or
"single" (one process); net is "bayesian", or "plain": without BatchNorm or noise.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

import bnn
from bnn.train import run as run_module

SEEN: dict[str, list[Any]] = {"seen": [], "shares": [], "noise": [], "num_data": [], "parameters": [], "written": []}


def network(way: str, kind: str) -> torch.nn.Module:
    if kind == "plain":
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", 0)))  # different starts: the first one's must win
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, max_lamda=0 if way == "fabric" else None)
    return net


def watch() -> None:
    """Notes in SEEN what every step sees, and which files are written."""
    forward, replace = run_module.Objective.forward, os.replace

    def spy(self: Any, x: Any, y: Any, epoch: float, share: float) -> Any:
        SEEN["seen"].append(x[:, 0].tolist())
        SEEN["shares"].append(share)
        SEEN["noise"].append(float(torch.rand(())))
        SEEN["num_data"].append(self.elbo.num_data)
        SEEN["parameters"].append(sum(float(parameter.double().sum()) for parameter in self.elbo.parameters()))
        return forward(self, x, y, epoch, share)

    def count(source: Any, target: Any) -> None:
        SEEN["written"].append(os.path.basename(target))
        replace(source, target)

    run_module.Objective.forward = spy  # type: ignore[method-assign]
    os.replace = count  # type: ignore[assignment]


def train(net: torch.nn.Module, folder: str, way: str, kind: str, epochs: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(75, 5, generator=generator), torch.randint(3, (75,), generator=generator)
    options: dict[str, Any] = {"warmup": 1} if kind == "bayesian" else {"optimiser": "sgd", "lr": 0.1}
    return bnn.fit(net, (x, y), validation=(x[:20], y[:20]), epochs=epochs, batch_size=16, seed=3, out=folder,
                   devices=2 if way == "fabric" else 1, accelerator="cpu", tensorboard=False, progress=False,
                   **options)  # fmt: skip


def main() -> None:
    folder, way, kind = sys.argv[1:]
    torch.set_num_threads(1)
    watch()
    whole = network(way, kind)
    history = train(whole, os.path.join(folder, "whole"), way, kind, 2)
    report: dict[str, Any] = {name: list(values) for name, values in SEEN.items()}
    state = {name: value.double().flatten().tolist() for name, value in whole.state_dict().items()}
    for epochs in (1, 2):  # the second one goes on from the first one's checkpoint
        net = network(way, kind)
        again = train(net, os.path.join(folder, "again"), way, kind, epochs)
    several = torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if several else 0
    report |= {
        "rank": rank,
        "world": torch.distributed.get_world_size() if several else 1,
        "backend": torch.distributed.get_backend() if several else None,
        "state": state,
        "again": {name: value.double().flatten().tolist() for name, value in net.state_dict().items()},
        "history": history.epochs,
        "history again": again.epochs,
    }
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
