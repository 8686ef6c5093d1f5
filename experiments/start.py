"""How should an inducing layer start? The same small CNN from scratch on Fashion-MNIST, four ways, three seeds.

    BNN_DATA=folder/with/fashion_mnist python experiments/start.py

The ways: the paper's random start or a projection of torch's random weights, each with the rows of Z at the paper's
scale (entries of sd M^-1/2) or at norm 1. Results go to experiments/results/start.json after every run; runs found
there are not repeated. The report is docs/decisions.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn

WAYS = {  # (init, norm of the rows of Z)
    "paper, paper's scale": ("paper", None),
    "paper, unit rows": ("paper", 1.0),
    "weights, paper's scale": ("weights", "paper"),
    "weights, unit rows": ("weights", None),
}
OPTIONS = {"inducing_rows": 24, "inducing_cols": 24, "sqrt_width_scaling": True, "max_lamda": 0.03, "max_sd_u": 0.1}
RESULTS = pathlib.Path(__file__).with_name("results") / "start.json"


def load(name: str, first: int | None) -> tuple[Tensor, Tensor]:
    part = bnn.data.load_part("fashion_mnist", name, first=first)
    assert part.y is not None
    return part.x.float() / 127.5 - 1, part.y


def network(way: str) -> nn.Module:
    net = bnn.nn.nets.make_network("cnn", channels=[1, 32, 64, 128], lin_sizes=[1152, 128, 10], conv_bn=True, padding=1)
    init, norm = WAYS[way]
    bnn.bayesianize_(net, "inducing", init=init, init_lamda=0.03, **OPTIONS)
    with torch.no_grad():
        for layer in net.modules():
            if norm is None or not hasattr(layer, "z_row"):
                continue
            for z in (layer.z_row, layer.z_col):
                m, d = z.shape
                z.mul_((1.0 if norm == 1.0 else (d / m) ** 0.5) / z.norm(dim=1, keepdim=True))
    return net


def evaluate(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    probs = bnn.predict(net, x, samples=8, batch_size=1000).probs
    curve = bnn.calibration.calibration_curve(probs.double().numpy(), y.numpy(), num_bins=15)
    return {
        "accuracy": (probs.argmax(1) == y).double().mean().item(),
        "nll": F.nll_loss(probs.clamp(min=1e-12).log(), y).item(),
        "ece": bnn.calibration.expected_calibration_error(*curve),
    }


def run(
    way: str, seed: int, epochs: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> dict[str, float]:
    torch.manual_seed(seed)
    net, start = network(way), time.time()
    x, y = train
    elbo = bnn.ELBO(net, num_data=len(x), likelihood="categorical", warmup=epochs / 4, anneal=epochs / 4)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 if epoch < 0.75 * epochs else 1e-4
        order = torch.randperm(len(x))
        for i in range(0, len(x), 128):
            batch = order[i : i + 128]
            optimiser.zero_grad()
            elbo(x[batch], y[batch], epoch=epoch + i / len(x)).loss.backward()
            optimiser.step()
    return {**evaluate(net, *test), "seconds": time.time() - start}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = {"epochs": args.epochs, "train": args.train, "torch": torch.__version__, "options": OPTIONS}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"settings": settings, "runs": {}}
    if results["settings"] != settings:
        sys.exit(f"{RESULTS} was made with other settings ({results['settings']}); move it away first")
    train, test = load("train", args.train), load("test", None)
    for seed in range(args.seeds):
        for way in WAYS:
            key = f"{way}, seed {seed}"
            if key not in results["runs"]:
                results["runs"][key] = run(way, seed, args.epochs, train, test)
                RESULTS.parent.mkdir(exist_ok=True)
                partial = RESULTS.with_suffix(".tmp")
                partial.write_text(json.dumps(results, indent=1))
                partial.replace(RESULTS)
            print(key, results["runs"][key], flush=True)
    print_table(results["runs"], args.seeds)


def print_table(runs: dict[str, dict[str, float]], seeds: int) -> None:
    """Mean and standard deviation over the seeds, as a Markdown table."""
    print("| start of Z and u | rows of Z | accuracy % | NLL | ECE % |\n|---|---|---|---|---|")
    for way in WAYS:
        rows = [runs[f"{way}, seed {seed}"] for seed in range(seeds)]
        cells = way.split(", ")
        for metric, scale, digits in ("accuracy", 100, 2), ("nll", 1, 3), ("ece", 100, 2):
            values = [scale * row[metric] for row in rows]
            cells.append(f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
