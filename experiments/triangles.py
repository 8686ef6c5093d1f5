"""Do full covariances train with plain Adam? Digits, a small network, three rates, three seeds.

    python experiments/triangles.py

`fcg` beside `ffg`, and `q_inducing="full"` beside "diagonal" for several M. The strict lower part of a triangle is
trained in units of `triangle_unit(n)`; `--unit 1` measures it in units of 1, in which the state dict keeps it. Results
go to experiments/results/triangles.json after every run; runs found there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

import bnn
from bnn.nn.families import fcg
from bnn.nn.families.q import full

RATES = (1e-3, 5e-3, 1e-2)
PAIRS = [("fcg", "ffg"), ("full 8", "diagonal 8"), ("full 16", "diagonal 16"), ("full 24", "diagonal 24")]
RESULTS = pathlib.Path(__file__).with_name("results") / "triangles.json"


def method(name: str) -> dict[str, Any]:
    """What `bayesianize_` is given."""
    if " " not in name:
        return {"inference": name}
    q, m = name.split()
    return {"inference": "inducing", "q_inducing": q, "inducing_rows": int(m), "inducing_cols": int(m)}


def run(name: str, lr: float, seed: int, epochs: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Any:
    torch.manual_seed(seed)
    net, start = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)), time.time()
    bnn.bayesianize_(net, **method(name))
    x, y = train
    elbo = bnn.ELBO(net, num_data=len(x), likelihood="categorical")
    optimiser = torch.optim.Adam(net.parameters(), lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            elbo(x[batch], y[batch]).loss.backward()
            optimiser.step()
    probs = bnn.predict(net, test[0], samples=16).probs
    return {"accuracy": (probs.argmax(1) == test[1]).double().mean().item(), "seconds": time.time() - start}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unit", type=float, default=None, help="of the strict lower parts, instead of triangle_unit")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.unit is not None:
        for module in (fcg, full):
            module.triangle_unit = lambda n: args.unit
    settings = {"epochs": args.epochs, "batch": 64, "torch": torch.__version__}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"settings": settings, "runs": {}}
    if results["settings"] != settings:
        sys.exit(f"{RESULTS} was made with other settings ({results['settings']}); move it away first")
    data = bnn.data.load("digits")
    train, test = ((x.flatten(1), y) for x, y in (data.train.tensors(), data.test.tensors()))
    unit = "" if args.unit is None else f", unit {args.unit:g}"
    for name, simpler in PAIRS:
        for one in (simpler, name):
            for lr in RATES:
                for seed in range(args.seeds):
                    key = f"{one}, lr {lr:g}, seed {seed}{unit if one == name else ''}"
                    if key not in results["runs"]:
                        results["runs"][key] = run(one, lr, seed, args.epochs, train, test)
                        write(results)
    print_table(results["runs"], args.seeds, unit)


def write(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    partial = RESULTS.with_suffix(".tmp")
    partial.write_text(json.dumps(results, indent=1))
    partial.replace(RESULTS)


def print_table(runs: dict[str, dict[str, float]], seeds: int, unit: str) -> None:
    """Mean accuracies over the seeds in %, of the full covariance / of independent entries, as a Markdown table."""
    print("| posterior | " + " | ".join(f"Adam {lr:g}" for lr in RATES) + " |\n|---" * 1 + "|---" * len(RATES) + "|")
    for name, simpler in PAIRS:
        cells = []
        for lr in RATES:
            keys = (f"{name}, lr {lr:g}, seed {{}}{unit}", f"{simpler}, lr {lr:g}, seed {{}}")
            means = [100 * sum(runs[key.format(s)]["accuracy"] for s in range(seeds)) / seeds for key in keys]
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        print(f"| {name} / {simpler} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
