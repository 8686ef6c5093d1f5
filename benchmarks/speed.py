"""K posterior draws against K passes of the plain network, and against the paper's way, in one interleaved run.

    python benchmarks/speed.py [--parts dense predict train split] [--nets resnet18 resnet50] [--batches 1 8 32 64]
                               [--rounds 5] [--threads 2] [--device cpu] [--out FILE]

Every figure is a ratio of medians over rounds in which all contestants take turns. The paper's way is `weight` in a
Python loop that builds every W for every draw and factorises anew each time. The run stops with an error unless the
standard deviation of the logits under `auto` agrees with that under `weight` within 5 %. The part `split` is different:
its ratios are split kernels (`kernel="auto"`) to the paper's matrix (M = 64), every layer of as many parameters: each
split layer has the largest M that takes no more of them. `--clock cpu` counts seconds that the processor gave to this
process, for a machine with other work; it needs `--parts split --threads 1`.

A whole run writes benchmarks/results/speed.json; a choice of parts, networks or batches is written only with --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import cpu_medians, heading, medians, report, write
from contestants import (
    DENSE,
    IMAGE,
    check_spread,
    dense,
    no_grad_draws,
    papers_way,
    passes,
    plain_step,
    resnet,
    split,
    training_step,
    variant,
    warmed,
)

import bnn

PARTS = ("dense", "predict", "train", "split")
NETS = ("resnet18", "resnet50")
CALLS = ((1, 20), (8, 8), (64, 4))  # (batch, K)
DENSE_CALLS = ((1, 16), (32, 8))
STEPS = (("resnet18", 32), ("resnet18", 64), ("resnet50", 64))  # (network, batch)
BATCHES = (1, 8, 32, 64)  # all that occur above
PREDICTING = ("lamda=0", "auto", "local", "ffg")
TRAINING = ("lamda=0", "local", "auto")
SPLIT = ("lamda=0", "auto", "local")
BARS = {  # of the time of K deterministic passes, at CALLS
    ("resnet18", "lamda=0"): (0.40, 0.50, 0.60),
    ("resnet50", "lamda=0"): (0.40, 0.52, 0.62),
    ("resnet18", "auto"): (1.20, 0.90, 0.85),
    ("resnet50", "auto"): (1.10, 0.90, 0.90),
    ("resnet18", "local"): (0.70, 0.75, 0.80),
    ("resnet50", "local"): (0.85, 0.75, 0.85),
    ("resnet18", "ffg"): (4.00, 1.60, 1.10),
    ("resnet18", "auto / paper"): (0.13, 0.35, 0.70),
    ("resnet50", "auto / paper"): (0.15, 0.45, 0.90),
}
DENSE_BARS = {("linear4096", 1): {"auto": 0.15}}
TRAINING_BARS = {  # of the time of one deterministic step, at STEPS
    ("resnet18", 32): {"lamda=0": 0.70, "local": 1.0},
    ("resnet18", 64): {"lamda=0": 0.70, "local": 0.85, "auto": 1.15},
    ("resnet50", 64): {"lamda=0": 0.85, "local": 1.2, "auto": 1.3},
}
SHORT_TURN = 2e-3  # seconds that the shortest turn takes at least


def bench_prediction(name: str, calls: list[tuple[int, int]], rounds: int, device: torch.device) -> list[Any]:
    """The table of `predict`: ratios to K deterministic passes."""
    plain = warmed(resnet(name, device), IMAGE, device)
    nets = {label: variant(plain, label) for label in PREDICTING}
    weight = variant(plain, "weight")
    ratio = check_spread(nets["auto"], torch.randn(4, *IMAGE, device=device), draws=400)
    print(f"{name}: sd of the logits, auto / weight: {ratio:.3f}", flush=True)
    rows = []
    for batch, k in calls:
        x = torch.randn(batch, *IMAGE, device=device)
        contestants: dict[str, Callable[[], Any]] = {"deterministic": lambda: passes(plain, x, k)}  # noqa: B023
        for label, net in nets.items():
            contestants[label] = lambda net=net: bnn.predict(net, x, samples=k)  # noqa: B023
        contestants["paper"] = lambda: papers_way(weight, x, k)  # noqa: B023
        seconds = medians(contestants, rounds, device)
        ratios = {label: seconds[label] / seconds["deterministic"] for label in (*nets, "paper")}
        ratios["auto / paper"] = seconds["auto"] / seconds["paper"]
        place = CALLS.index((batch, k))
        bars = {label: BARS[name, label][place] for label in ratios if (name, label) in BARS}
        rows.append({"net": name, "batch": batch, "draws": k, "seconds": seconds, "ratios": ratios, "bars": bars})
        report(f"predict, {name}, batch {batch}, K={k}", ratios, bars)
    return rows


def bench_split(
    name: str, calls: list[tuple[int, int]], rounds: int, device: torch.device, cpu: bool = False
) -> list[dict[str, Any]]:
    """Split kernels against the paper's matrix, of as many parameters: ratios of the times of `predict`."""
    plain = warmed(resnet(name, device), IMAGE, device)
    pairs = {label: (variant(plain, label), split(plain, label)) for label in SPLIT}
    rows = []
    for batch, k in calls:
        x = torch.randn(batch, *IMAGE, device=device)
        contestants: dict[str, Callable[[], Any]] = {}
        for label, nets in pairs.items():
            for kernel, net in zip(("paper", "split"), nets, strict=True):
                contestants[f"{label}, {kernel}"] = lambda net=net: bnn.predict(net, x, samples=k)  # noqa: B023
        seconds = cpu_medians(contestants, rounds) if cpu else medians(contestants, rounds, device)
        ratios = {label: seconds[f"{label}, split"] / seconds[f"{label}, paper"] for label in SPLIT}
        rows.append({"net": name, "batch": batch, "draws": k, "seconds": seconds, "ratios": ratios, "bars": {}})
        report(f"split / paper's matrix, {name}, batch {batch}, K={k}", ratios, {})
    return rows


def bench_training(name: str, batch: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """One training step: forward, KL, backward, Adam."""
    x, y = torch.randn(batch, *IMAGE, device=device), torch.randint(10, (batch,), device=device)
    plain = resnet(name, device)
    contestants = {"deterministic": plain_step(plain, x, y)}
    contestants |= {label: training_step(variant(plain, label), x, y) for label in TRAINING}
    seconds = medians(contestants, rounds, device)
    ratios = {label: seconds[label] / seconds["deterministic"] for label in TRAINING}
    bars = TRAINING_BARS[name, batch]
    report(f"training step, {name}, batch {batch}", ratios, bars)
    return {"net": name, "batch": batch, "seconds": seconds, "ratios": ratios, "bars": bars}


def bench_dense_nets(calls: list[tuple[int, int]], rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """An MLP and one wide layer, against K dense passes."""
    rows = []
    for name, (title, m, width) in DENSE.items():
        plain = dense(name, device)
        nets = {label: variant(plain, label, m) for label in ("lamda=0", "auto")}
        for batch, k in calls:
            x = torch.randn(batch, width, device=device)
            contestants: dict[str, Callable[[], Any]] = {"deterministic": lambda: passes(plain, x, k)}  # noqa: B023
            for label, net in nets.items():
                contestants[label] = lambda net=net: no_grad_draws(net, x, k)  # noqa: B023
            seconds = medians(contestants, max(rounds, 15), device, least=SHORT_TURN)
            ratios = {label: seconds[label] / seconds["deterministic"] for label in nets}
            bars = DENSE_BARS.get((name, batch), {})
            rows.append({"net": title, "batch": batch, "draws": k, "seconds": seconds, "ratios": ratios, "bars": bars})
            report(f"{title}, batch {batch}, K={k}", ratios, bars)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS, help="of predict and train")
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of split; cpu needs --threads 1")
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    calls = [call for call in CALLS if call[0] in args.batches and "predict" in args.parts]
    dense_calls = [call for call in DENSE_CALLS if call[0] in args.batches and "dense" in args.parts]
    steps = [(net, n) for net, n in STEPS if net in args.nets and n in args.batches and "train" in args.parts]
    split_calls = [call for call in CALLS if call[0] in args.batches and "split" in args.parts]
    if args.clock == "cpu" and (args.threads != 1 or set(args.parts) != {"split"}):
        sys.exit("--clock cpu is for --parts split with --threads 1")
    if not (calls or dense_calls or steps or split_calls):
        sys.exit("nothing to time: no row of these parts and networks has one of these batches")
    print("times relative to K deterministic passes of the same network, medians of interleaved rounds")
    result = heading(args, device)
    if dense_calls:
        result["dense"] = bench_dense_nets(dense_calls, args.rounds, device)
    if calls:
        result["predict"] = [row for name in args.nets for row in bench_prediction(name, calls, args.rounds, device)]
    if steps:
        result["train"] = [bench_training(name, batch, args.rounds, device) for name, batch in steps]
    if split_calls:
        cpu = args.clock == "cpu"
        result["split"] = [r for name in args.nets for r in bench_split(name, split_calls, args.rounds, device, cpu)]
    whole = (set(args.parts), set(args.nets), set(args.batches)) == (set(PARTS), set(NETS), set(BATCHES))
    write(result, args.out, default="speed.json", complete=whole)


if __name__ == "__main__":
    main()
