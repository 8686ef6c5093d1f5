"""What `bnn.fit` costs beside the steps themselves: its time against a plain loop over the same batches.

    python benchmarks/training.py

Prints JSON: the median over interleaved rounds of time(fit) / time(loop), for a small CNN and its inducing twin.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from typing import Any

import torch
from torch import nn

import bnn
from bnn.train.build import build_net


def loop(net: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
    """One epoch of the README's loop."""
    elbo = bnn.ELBO(net, num_data=len(x), likelihood="categorical")
    optimiser = torch.optim.Adam(bnn.parameter_groups(elbo, lr=1e-3))
    for index in torch.randperm(len(x)).split(batch):
        optimiser.zero_grad()
        elbo(x[index], y[index]).loss.backward()
        optimiser.step()


def seconds(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ratio(net: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, rounds: int) -> dict[str, float]:
    ratios, plain = [], []
    for _ in range(rounds):
        one, two = copy.deepcopy(net), copy.deepcopy(net)
        slow = seconds(lambda one=one: loop(one, x, y, batch))
        fast = seconds(lambda two=two: bnn.fit(two, (x, y), epochs=1, batch_size=batch, refresh_batchnorm=False))
        ratios.append(fast / slow)
        plain.append(slow / -(-len(x) // batch))
    return {"fit / loop": round(statistics.median(ratios), 3), "ms per step": round(1e3 * statistics.median(plain), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=2000)
    args = parser.parse_args()
    x, y = torch.rand(args.inputs, 1, 28, 28), torch.randint(10, (args.inputs,))
    net = build_net({"name": "cnn", "channels": [32, 64, 64], "hidden": [256]}, (1, 28, 28), 10)
    twin = copy.deepcopy(net)
    bnn.bayesianize_(twin, "inducing", inducing_rows=24, inducing_cols=24)
    loop(copy.deepcopy(net), x[:200], y[:200], 100)
    bnn.fit(copy.deepcopy(net), (x[:200], y[:200]), epochs=1)  # imports what is imported late
    print(json.dumps({name: ratio(one, x, y, 100, args.rounds) for name, one in (("plain", net), ("inducing", twin))}))


if __name__ == "__main__":
    main()
