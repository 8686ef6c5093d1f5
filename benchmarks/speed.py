"""K posterior draws against K passes of the plain network, and against the paper's way, in one interleaved run.

    python benchmarks/speed.py [--nets resnet18 resnet50] [--rounds 5] [--device cpu] [--out FILE]

Every figure is a ratio of medians over rounds in which all contestants take turns. The paper's way is `weight` in a
Python loop that builds every W for every draw and factorises anew each time. The run stops with an error unless the
standard deviation of the logits under `auto` agrees with that under `weight` within 5 %.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import clock, describe_machine, synchronise
from torch import Tensor, nn

import bnn
from bnn.nn.inducing import InducingBase
from bnn.nn.nets import make_network

LAMDA = {"init_lamda": 0.03, "max_lamda": 0.03}
CALLS = ((1, 20), (8, 8), (64, 4))  # (batch, K)
BARS = {  # of the time of K deterministic passes, at CALLS; None: no bar
    ("resnet18", "lamda=0"): (0.40, 0.50, 0.60),
    ("resnet50", "lamda=0"): (0.40, 0.52, 0.62),
    ("resnet18", "auto"): (1.20, 0.90, 0.85),
    ("resnet50", "auto"): (1.20, 0.90, 0.90),
    ("resnet18", "local"): (0.70, 0.75, 0.80),
    ("resnet50", "local"): (0.85, 0.75, 0.85),
    ("resnet18", "auto / paper"): (0.13, 0.35, 0.70),
    ("resnet50", "auto / paper"): (0.15, 0.45, 0.90),
}
TRAINING_BARS = {
    ("resnet18", "lamda=0"): 0.70,
    ("resnet50", "lamda=0"): 0.85,
    ("resnet18", "local"): 1.0,
    ("resnet50", "local"): 1.2,
    ("resnet18", "auto"): 1.15,
    ("resnet50", "auto"): 1.3,
}


def medians(contestants: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each contestant over interleaved rounds, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            seconds = clock(lambda run=run: (run(), synchronise(device)))
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def converted(plain: nn.Module, family: str = "inducing", m: int = 64, **options: Any) -> nn.Module:
    """A converted copy with M = m."""
    net = copy.deepcopy(plain)
    sizes = {"inducing_rows": m, "inducing_cols": m} if family == "inducing" else {}
    bnn.bayesianize_(net, family, **sizes, **options)
    return net.eval()


def passes(net: nn.Module, x: Tensor, k: int) -> None:
    """K plain passes."""
    with torch.no_grad():
        for _ in range(k):
            net(x)


def papers_way(net: nn.Module, x: Tensor, k: int) -> None:
    """`weight` in a Python loop, every factor computed in every pass."""
    with torch.no_grad():
        for _ in range(k):
            for module in net.modules():
                if isinstance(module, InducingBase):
                    module.reset_cache()
            net(x)


def warmed(plain: nn.Module, shape: tuple[int, ...], device: torch.device) -> nn.Module:
    """The network with running statistics that keep activations at a natural scale."""
    plain.train()
    with torch.no_grad():
        for _ in range(20):
            plain(torch.randn(32, *shape, device=device))
    return plain.eval()


def check_spread(auto: nn.Module, weight: nn.Module, x: Tensor, draws: int, tolerance: float = 0.05) -> float:
    """The sd of the logits under `auto` over that under `weight`; stops the run if they differ.

    A ratio that is off by chance gets a second look with four times as many draws.
    """
    for count in (draws, 4 * draws):
        with torch.no_grad():
            spread = [_spread(net, x, count) for net in (auto, weight)]
        ratio = spread[0] / spread[1]
        if abs(ratio - 1) <= tolerance:
            return ratio
    sys.exit(f"the sd of the logits is {spread[0]:.4f} under auto and {spread[1]:.4f} under weight: not the same")


def _spread(net: nn.Module, x: Tensor, draws: int) -> float:
    """The root mean square over inputs and logits of the sd over draws."""
    return float(bnn.draws(net, x, samples=draws).var(0).mean().sqrt())


def bench_prediction(name: str, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """The table of `predict`: ratios to K deterministic passes."""
    shape = (3, 32, 32)
    plain = warmed(make_network(name, out_features=10, kernel_size=3, remove_maxpool=True).to(device), shape, device)
    nets = {
        "lamda=0": converted(plain, max_lamda=0),
        "auto": converted(plain, **LAMDA),
        "local": converted(plain, sampling="local", **LAMDA),
        "ffg": converted(plain, "ffg", init_sd=0.01),
    }
    weight = converted(plain, sampling="weight", **LAMDA)
    ratio = check_spread(nets["auto"], weight, torch.randn(4, *shape, device=device), draws=400)
    print(f"{name}: sd of the logits, auto / weight: {ratio:.3f}", flush=True)
    rows = []
    for place, (batch, k) in enumerate(CALLS):
        x = torch.randn(batch, *shape, device=device)
        contestants: dict[str, Callable[[], Any]] = {"deterministic": lambda: passes(plain, x, k)}  # noqa: B023
        for label, net in nets.items():
            contestants[label] = lambda net=net: bnn.predict(net, x, samples=k)  # noqa: B023
        contestants["paper"] = lambda: papers_way(weight, x, k)  # noqa: B023
        seconds = medians(contestants, rounds, device)
        ratios = {label: seconds[label] / seconds["deterministic"] for label in (*nets, "paper")}
        ratios["auto / paper"] = seconds["auto"] / seconds["paper"]
        bars = {label: BARS[name, label][place] for label in ratios if (name, label) in BARS}
        rows.append({"net": name, "batch": batch, "draws": k, "seconds": seconds, "ratios": ratios, "bars": bars})
        report(f"predict, {name}, batch {batch}, K={k}", ratios, bars)
    return rows


def bench_training(name: str, rounds: int, device: torch.device, batch: int = 64) -> list[dict[str, Any]]:
    """One training step: forward, KL, backward, Adam."""
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
    plain = make_network(name, out_features=10, kernel_size=3, remove_maxpool=True).to(device)
    nets = {
        "lamda=0": converted(plain, max_lamda=0),
        "local": converted(plain, sampling="local", **LAMDA),
        "auto": converted(plain, **LAMDA),
    }
    contestants = {"deterministic": training_step(plain, x, y)}
    contestants |= {label: training_step(net, x, y) for label, net in nets.items()}
    seconds = medians(contestants, rounds, device)
    ratios = {label: seconds[label] / seconds["deterministic"] for label in nets}
    bars = {label: TRAINING_BARS[name, label] for label in ratios}
    report(f"training step, {name}, batch {batch}", ratios, bars)
    return [{"net": name, "batch": batch, "seconds": seconds, "ratios": ratios, "bars": bars}]


def training_step(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that makes one step of Adam on the ELBO; without Bayesian layers, on the likelihood."""
    net.train()
    elbo = bnn.ELBO(net, num_data=50_000, likelihood="categorical")
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()

    return step


def bench_dense_nets(rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """An MLP and one wide layer, against K dense passes."""
    mlp = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    cases = [
        ("MLP 1024-1024-1024, M=32", mlp, 32, 1024, None),
        ("Linear 4096x4096, M=64", nn.Linear(4096, 4096), 64, 4096, 0.15),
    ]
    rows = []
    for name, plain, m, width, bar in cases:
        plain = plain.to(device).eval()
        nets = {"lamda=0": converted(plain, m=m, max_lamda=0), "auto": converted(plain, m=m, **LAMDA)}
        for batch, k in ((1, 16), (32, 8)):
            x = torch.randn(batch, width, device=device)
            contestants: dict[str, Callable[[], Any]] = {"deterministic": lambda: passes(plain, x, k)}  # noqa: B023
            for label, net in nets.items():
                contestants[label] = lambda net=net: no_grad_draws(net, x, k)  # noqa: B023
            seconds = medians(contestants, max(rounds, 15), device)
            ratios = {label: seconds[label] / seconds["deterministic"] for label in nets}
            bars = {"auto": bar} if bar is not None and batch == 1 else {}
            rows.append({"net": name, "batch": batch, "draws": k, "seconds": seconds, "ratios": ratios, "bars": bars})
            report(f"{name}, batch {batch}, K={k}", ratios, bars)
    return rows


def no_grad_draws(net: nn.Module, x: Tensor, k: int) -> None:
    with torch.no_grad():
        bnn.draws(net, x, samples=k)


def report(title: str, ratios: dict[str, float], bars: dict[str, float]) -> None:
    shown = []
    for label, ratio in ratios.items():
        bar = bars.get(label)
        mark = "" if bar is None else f" (bar {bar:.2f}{'' if ratio <= bar else ', MISSED'})"
        shown.append(f"{label} {ratio:.2f}{mark}")
    print(f"{title:45s} {'   '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=["resnet18", "resnet50"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="*", default=["dense", "predict", "train"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "speed.json")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    print("times relative to K deterministic passes of the same network, medians of interleaved rounds")
    result: dict[str, Any] = {
        "machine": describe_machine(device),
        "seed": args.seed,
        "rounds": args.rounds,
        "date": time.strftime("%Y-%m-%d"),
    }
    if "dense" in args.parts:
        result["dense"] = bench_dense_nets(args.rounds, device)
    if "predict" in args.parts:
        result["predict"] = [row for name in args.nets for row in bench_prediction(name, args.rounds, device)]
    if "train" in args.parts:
        result["train"] = [row for name in args.nets for row in bench_training(name, args.rounds, device)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
