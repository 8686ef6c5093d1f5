"""What draws and training steps of small networks cost, where Python counts for more than arithmetic.

    python benchmarks/small.py [--only 'mlp/*' '*/predict/1'] [--rounds 15] [--threads 1] [--out FILE]

Rows are named network/what/batch. In all of them the plain network and its converted copies, lamda = 0 and 0.03, take
turns, and short calls are repeated until the shortest turn takes 2 ms. Ratios are of medians.

- predict: `bnn.predict` with K draws over K plain passes; and over K draws of `sampling="weight"` in a Python loop,
  which nobody should have a reason to go back to: the bar is 1.
- pass, pass-grad: `net(x)` once over one plain pass, without and with gradients.
- step: forward, KL, backward, Adam over the same with the cross-entropy of the plain network.
- epoch: one epoch of `bnn.fit` on 2,000 inputs over one of the plain network.

The run stops with an error unless the sd of the logits under `auto` agrees with that under `weight` within 5 %. A whole
run writes benchmarks/results/small.json; a choice of rows is written only with --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from common import chosen, heading, medians, report, write
from contestants import LAMDA, check_spread, converted, passes, plain_step, training_step
from torch import Tensor, nn

import bnn

WHATS = ("predict", "pass", "pass-grad", "step", "epoch")
OPTIONS: dict[str, dict[str, Any]] = {"lamda=0": {"max_lamda": 0}, "lamda=0.03": LAMDA}
LOOP = " / loop"  # what a ratio to `weight` in a Python loop is called after its contestant
EPOCH = 2_000  # inputs
SHORT_TURN = 2e-3  # seconds that the shortest turn takes at least
SPREAD_DRAWS = 2_000
BARS = {
    "mlp/predict/1": {"lamda=0": 1.5, "lamda=0.03": 3.0},
    "mlp/predict/1000": {"lamda=0": 1.2, "lamda=0.03": 1.4},
    "mlp/pass/1": {"lamda=0": 6.0, "lamda=0.03": 6.0},
    "mlp/step/100": {"lamda=0": 6.0, "lamda=0.03": 6.0},  # the aim is 4
    "cnn188k/predict/100": {"lamda=0.03": 0.9},
    "cnn188k/epoch/100": {"lamda=0.03": 1.3},
}


@dataclass(frozen=True)
class Network:
    """A small network, and how it is called.

    Args:
        build: makes the plain network.
        shape: of one input.
        classes: number of outputs.
        m: inducing rows and columns.
        draws: K.
        batches: of `predict`.
    """

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    m: int
    draws: int
    batches: tuple[int, ...]


def mlp(*sizes: int) -> nn.Module:
    """Linear layers with ReLUs between them."""
    pairs = list(pairwise(sizes))
    hidden = [part for d_in, d_out in pairs[:-1] for part in (nn.Linear(d_in, d_out), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(*pairs[-1]))


def cnn(channels: tuple[int, int, int], hidden: int) -> nn.Module:
    """Three strided convolutions and two linear layers for images (1, 28, 28)."""
    one, two, three = channels
    return nn.Sequential(
        *(nn.Conv2d(1, one, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(one, two, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(two, three, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * three, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )


NETWORKS = {
    "mlp": Network("MLP 16-64-64-2", lambda: mlp(16, 64, 64, 2), (16,), 2, 8, 20, (1, 1000)),
    "mlp256": Network("MLP 64-256-256-10", lambda: mlp(64, 256, 256, 10), (64,), 10, 16, 20, (1, 1000)),
    "cnn10k": Network("CNN of 10k parameters", lambda: cnn((8, 16, 16), 24), (1, 28, 28), 10, 8, 10, (1, 100)),
    "cnn188k": Network("CNN of 188k parameters", lambda: cnn((32, 64, 64), 128), (1, 28, 28), 10, 20, 10, (1, 100)),
}


def row_names() -> list[str]:
    """Names of all rows, network by network."""
    batches = {"pass": (1,), "pass-grad": (1,), "step": (100,), "epoch": (100,)}
    return [
        f"{name}/{what}/{batch}"
        for name, network in NETWORKS.items()
        for what in WHATS
        for batch in batches.get(what, network.batches)
    ]


def variants(network: Network, plain: nn.Module, **options: Any) -> dict[str, nn.Module]:
    """Converted copies of a plain network, by the columns of the table."""
    return {label: converted(plain, m=network.m, **which, **options) for label, which in OPTIONS.items()}


def predicting(network: Network, plain: nn.Module, x: Tensor) -> dict[str, Callable[[], Any]]:
    """K plain passes, `predict` with K draws, and `weight` in a loop over K draws."""
    k, auto, weight = network.draws, variants(network, plain), variants(network, plain, sampling="weight")
    check_spread(auto["lamda=0.03"], x[:4], SPREAD_DRAWS)
    contestants: dict[str, Callable[[], Any]] = {"plain": lambda: passes(plain, x, k)}
    for label in OPTIONS:
        contestants[label] = lambda net=auto[label]: bnn.predict(net, x, samples=k)
        contestants[f"loop, {label}"] = lambda net=weight[label]: passes(net, x, k)
    return contestants


def passing(network: Network, plain: nn.Module, x: Tensor, gradients: bool) -> dict[str, Callable[[], Any]]:
    """One pass of the plain network and of its copies."""

    def once(net: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.set_grad_enabled(gradients):
                net(x)

        return run

    return {label: once(net) for label, net in ({"plain": plain} | variants(network, plain)).items()}


def stepping(network: Network, plain: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    """One step of Adam on one batch."""
    steps = {label: training_step(net, x, y) for label, net in variants(network, plain).items()}
    return {"plain": plain_step(plain, x, y)} | steps


def fitting(network: Network, plain: nn.Module, x: Tensor, y: Tensor, batch: int) -> dict[str, Callable[[], Any]]:
    """One epoch of `bnn.fit`; every turn goes on training the same network."""

    def epoch(net: nn.Module) -> Callable[[], Any]:
        return lambda: bnn.fit(net, (x, y), epochs=1, batch_size=batch, progress=False)

    return {label: epoch(net) for label, net in ({"plain": plain} | variants(network, plain)).items()}


def contestants_of(row: str, device: torch.device) -> dict[str, Callable[[], Any]]:
    """What takes turns in a row."""
    name, what, batch = row.split("/")
    network = NETWORKS[name]
    plain = network.build().to(device).eval()
    inputs = EPOCH if what == "epoch" else int(batch)
    x = torch.randn(inputs, *network.shape, device=device)
    y = torch.randint(network.classes, (inputs,), device=device)
    match what:
        case "predict":
            return predicting(network, plain, x)
        case "step":
            return stepping(network, plain, x, y)
        case "epoch":
            return fitting(network, plain, x, y, int(batch))
    return passing(network, plain, x, gradients=what == "pass-grad")


def measure(row: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """One row: seconds of all contestants, ratios to the plain network and to the loop, bars."""
    name, what, batch = row.split("/")
    seconds = medians(contestants_of(row, device), rounds, device, least=SHORT_TURN)
    ratios = {label: seconds[label] / seconds["plain"] for label in OPTIONS}
    bars = dict(BARS.get(row, {}))
    if what == "predict":
        ratios |= {label + LOOP: seconds[label] / seconds[f"loop, {label}"] for label in OPTIONS}
        bars |= {label + LOOP: 1.0 for label in OPTIONS}
    report(row, ratios, bars)
    network = NETWORKS[name]
    about = {"row": row, "net": f"{network.title}, M={network.m}", "what": what, "batch": int(batch)}
    draws = {"draws": network.draws} if what == "predict" else {}
    return about | draws | {"seconds": seconds, "ratios": ratios, "bars": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="GLOB", help="rows to time, by name; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    names = chosen(row_names(), args.only)
    print("times relative to the plain network, medians of interleaved rounds")
    result = heading(args, device)
    result["rows"] = [measure(row, args.rounds, device) for row in names]
    write(result, args.out, default="small.json", complete=names == row_names())


if __name__ == "__main__":
    main()
