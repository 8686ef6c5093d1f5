"""Trains on two processes (gloo) and says what each of them saw; run as a program by test_two_processes.py.

python two_processes.py <folder> <way>: way is "fabric", where this program starts the second process, or "torchrun".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
import torch.nn.functional as F

import bnn
from bnn.train import step

SEEN: dict[str, list[Any]] = {"seen": [], "shares": [], "noise": [], "num_data": [], "parameters": [], "written": []}


class Stopping:
    """Cross-entropy that sends this process Ctrl-C in the n-th training step."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.n -= output.requires_grad
        if self.n == 0 and output.requires_grad:
            os.kill(os.getpid(), signal.SIGINT)
        return F.cross_entropy(output, target, reduction="none")


def bayesian_net(**options: Any) -> torch.nn.Module:
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", 0)))  # different starts: the first one's must win
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, **options)
    return net


def plain_net() -> torch.nn.Module:
    """Without BatchNorm or noise: on how many processes it trains must not matter."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def teacher() -> torch.nn.Module:
    """A network that says something else than the labels."""
    torch.manual_seed(9)
    return torch.nn.Linear(5, 3)


def train(net: torch.nn.Module, folder: str | None, devices: int, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(75, 5, generator=generator), torch.randint(3, (75,), generator=generator)
    defaults: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 3, "tensorboard": False, "progress": False}
    options = defaults | {"validation": (x[:20], y[:20])} | options
    return bnn.fit(net, (x, y), out=folder, devices=devices, accelerator="cpu", **options)


def train_plain(folder: str | None, devices: int, likelihood: Any, **options: Any) -> dict[str, Any]:
    net = plain_net()
    history = train(net, folder, devices, likelihood=likelihood, optimiser="sgd", lr=0.1, **options)
    return {"state": numbers(net), "history": history.epochs}


def numbers(net: torch.nn.Module) -> dict[str, list[float]]:
    return {name: value.double().flatten().tolist() for name, value in net.state_dict().items()}


def watch() -> None:
    """Notes in SEEN what every step sees, and which files are written."""
    forward, replace = step.Objective.forward, os.replace

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

    step.Objective.forward = spy  # type: ignore[method-assign]
    os.replace = count  # type: ignore[assignment]


def main() -> None:
    folder, way = sys.argv[1:]
    devices, options = (2, {"max_lamda": 0}) if way == "fabric" else (1, {})
    torch.set_num_threads(1)
    watch()
    net = bayesian_net(**options)
    history = train(net, os.path.join(folder, "whole"), devices, warmup=1)
    report: dict[str, Any] = {name: list(values) for name, values in SEEN.items()}
    report |= {"state": numbers(net), "history": history.epochs}
    for epochs in (1, 2):  # the second one resumes from the first one's checkpoint
        net = bayesian_net(**options)
        train(net, os.path.join(folder, "again"), devices, warmup=1, epochs=epochs)
    report["again"] = numbers(net)
    rank = torch.distributed.get_rank()
    report["plain"] = train_plain(None, devices, Stopping())
    try:
        train_plain(os.path.join(folder, "plain"), devices, Stopping(n=3 if rank == 1 else 0))
    except KeyboardInterrupt as error:
        report["stopped"] = str(error)
    report["taught"] = train_plain(None, devices, "categorical", teacher=teacher(), teacher_weight=0.5)
    report["plain again"] = train_plain(os.path.join(folder, "plain"), devices, Stopping())
    report |= {
        "rank": rank,
        "world": torch.distributed.get_world_size(),
        "backend": torch.distributed.get_backend(),
    }
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(report, file)
    torch.distributed.barrier()  # or the first to end takes the other's connections, and with them that process, along
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
