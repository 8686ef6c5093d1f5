"""Trains on two processes (gloo) and says what each of them saw; run as a program by test_two_processes.py."""

from __future__ import annotations

import json
import os
import sys

import torch

import bnn
from bnn.train import run as run_module


def main() -> None:
    folder, way = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", 0)))  # different starts: the first one's must win
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, max_lamda=0 if way == "fabric" else None)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(75, 5, generator=generator), torch.randint(3, (75,), generator=generator)
    seen: list[float] = []
    shares: list[float] = []
    noise: list[float] = []
    forward = run_module.Objective.forward

    def spy(self, x, y, epoch, share):  # type: ignore[no-untyped-def]
        seen.extend(x[:, 0].tolist())
        shares.append(share)
        noise.append(float(torch.rand(())))
        return forward(self, x, y, epoch, share)

    run_module.Objective.forward = spy  # type: ignore[method-assign]
    written: list[str] = []
    replace = os.replace

    def count(source, target):  # type: ignore[no-untyped-def]
        written.append(os.path.basename(target))
        replace(source, target)

    os.replace = count  # type: ignore[assignment]
    devices = {"fabric": 2, "torchrun": 1}[way]
    history = bnn.fit(net, (x, y), validation=(x[:20], y[:20]), epochs=2, batch_size=16, warmup=1, seed=3, out=folder,
                      devices=devices, accelerator="cpu", tensorboard=False, progress=False)  # fmt: skip
    rank = torch.distributed.get_rank()
    report = {
        "rank": rank,
        "world": torch.distributed.get_world_size(),
        "backend": torch.distributed.get_backend(),
        "seen": seen,
        "shares": shares,
        "noise": noise,
        "written": written,
        "state": {name: value.double().flatten().tolist() for name, value in net.state_dict().items()},
        "nll": history.column("validation_nll"),
        "data": history.column("data"),
        "inputs": sorted(x[:, 0].tolist()),
    }
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
