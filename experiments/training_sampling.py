"""How should layers draw in training under BatchNorm? A CNN on Fashion-MNIST, three ways, three lamdas, three seeds.

    BNN_DATA=folder/with/fashion_mnist python experiments/training_sampling.py

The ways: whole weights ("weight"), noise of its own for every input, as `sampling="auto"` would draw it if it did not
look for BatchNorm ("input"), and noise of its own for every position ("local"). Every layer takes the cheapest way of
drawing that its guarantee allows, so early convolutions draw whole weights in all three. All networks are scored alike,
under "auto". Steps are timed apart from the runs, with the ways taking turns, on this network and on a ResNet-18.
Results go to experiments/results/training_sampling.json after every run; what is found there is not repeated. The
report is docs/decisions.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn._engine.call import Call  # whose rule `couples_inputs` looks for BatchNorm

WAYS = {"weight": "weight", "input": "auto", "local": "local"}  # the option `sampling` of training
LAMDAS = [0.03, 0.1, 0.3]
CHANNELS = [(32, 2), (64, 2), (128, 2), (128, 1), (256, 2)]  # (channels, stride) of 3 x 3 convolutions
OPTIONS = {"inducing_rows": 16, "inducing_cols": 16, "sqrt_width_scaling": True, "max_sd_u": 0.1, "learn_lamda": False}
RESULTS = pathlib.Path(__file__).with_name("results") / "training_sampling.json"


@contextmanager
def without_the_rule(way: str) -> Iterator[None]:
    """For "input": inside the block `auto` does not look for BatchNorm where gradients flow, as in training steps.

    The re-estimation of BatchNorm statistics after training and predictions run without gradients and keep the rule.
    """
    rule = Call.couples_inputs
    if way == "input":
        Call.couples_inputs = lambda call: not torch.is_grad_enabled() and rule(call)
    try:
        yield
    finally:
        Call.couples_inputs = rule


def load(train: int, held_out: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The first images for training, the next for validation."""
    part = bnn.data.load_part("fashion_mnist", "train", first=train + held_out)
    assert part.y is not None
    images, labels = part.x.float() / 127.5 - 1, part.y
    return (images[:train], labels[:train]), (images[train:], labels[train:])


def plain_network() -> nn.Module:
    """Five convolutions with BatchNorm, of 14 x 14 to 2 x 2 positions, and a linear layer."""
    layers: list[nn.Module] = []
    before = 1
    for channels, stride in CHANNELS:
        convolution = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def network(lamda: float) -> nn.Module:
    """The same, converted."""
    net = plain_network()
    bnn.bayesianize_(net, "inducing", init_lamda=lamda, max_lamda=lamda, **OPTIONS)
    return net


def evaluate(net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, float]:
    """Validation metrics of 8 draws under `auto`."""
    bnn.set_sampling_(net, "auto")
    generator = torch.Generator().manual_seed(seed)
    probs = bnn.predict(net, x, samples=8, batch_size=500, generator=generator).probs
    curve = bnn.calibration.calibration_curve(probs.double().numpy(), y.numpy(), num_bins=15)
    return {
        "nll": F.nll_loss(probs.clamp(min=1e-12).log(), y).item(),
        "accuracy": (probs.argmax(1) == y).double().mean().item(),
        "ece": bnn.calibration.expected_calibration_error(*curve),
    }


def run(way: str, lamda: float, seed: int, schedule: dict[str, Any], data: Any) -> dict[str, float]:
    """Trains one network and scores it; ways with the same seed start from the same parameters."""
    torch.manual_seed(seed)
    net, start = network(lamda), time.time()
    train, held_out = data
    with without_the_rule(way):
        history = bnn.fit(net, train, seed=seed, sampling=WAYS[way], progress=False, **schedule)
    steps = schedule["epochs"] * -(-len(train[0]) // schedule["batch_size"])
    found = evaluate(net, *held_out, seed) | {"data_term": history.last["data"]}
    return found | {"step_seconds": sum(history.column("seconds")) / steps, "seconds": time.time() - start}


def time_steps(plain: nn.Module, converted: nn.Module, x: Tensor, rounds: int, each: int) -> dict[str, float]:
    """Median seconds of a training step of the plain network and of the converted one in every way, taking turns."""
    y = torch.randint(10, (len(x),))
    elbos = {
        "plain": bnn.ELBO(plain, 10_000, "categorical"),
        **dict.fromkeys(WAYS, bnn.ELBO(converted, 10_000, "categorical")),
    }
    optimisers = {id(elbo): torch.optim.Adam(elbo.parameters(), 1e-3) for elbo in elbos.values()}
    seconds: dict[str, list[float]] = {way: [] for way in elbos}
    for number in range((rounds + 1) * each):
        for way, elbo in elbos.items():
            if way in WAYS:
                bnn.set_sampling_(converted, WAYS[way])
            optimiser = optimisers[id(elbo)]
            with without_the_rule(way):
                start = time.perf_counter()
                optimiser.zero_grad()
                elbo(x, y).loss.backward()
                optimiser.step()
                if number >= each:  # the first round warms up
                    seconds[way].append(time.perf_counter() - start)
    return {way: float(np.median(values)) for way, values in seconds.items()}


def timings() -> dict[str, Any]:
    """What to time: by name, a function that does it."""

    def small(batch: int) -> dict[str, float]:
        return time_steps(plain_network(), network(0.1), torch.randn(batch, 1, 28, 28), rounds=5, each=5)

    def resnet(batch: int) -> dict[str, float]:
        make = {"out_features": 10, "kernel_size": 3, "remove_maxpool": True}
        plain, net = (bnn.nn.nets.make_network("resnet18", **make) for _ in range(2))
        bnn.bayesianize_(net, "inducing", inducing_rows=64, inducing_cols=64, init_lamda=0.03, sqrt_width_scaling=True)
        return time_steps(plain, net, torch.randn(batch, 3, 32, 32), rounds=7, each=1)

    return {
        "the network above, batch 64": lambda: small(64),
        "resnet18, batch 32": lambda: resnet(32),
        "resnet18, batch 64": lambda: resnet(64),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--held-out", type=int, default=5_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    schedule = {"epochs": args.epochs, "batch_size": 64, "lr": 2e-3, "cosine": True}
    schedule |= {"warmup": args.epochs / 4, "anneal": args.epochs / 4}
    sizes = {"train": args.train, "held_out": args.held_out, "channels": [list(one) for one in CHANNELS]}
    versions = {"torch": torch.__version__, "python": platform.python_version(), "threads": args.threads}
    settings = {"schedule": schedule, "options": OPTIONS, **sizes, **versions}
    blank: dict[str, Any] = {"settings": settings, "runs": {}, "steps": {}}
    results = json.loads(args.out.read_text()) if args.out.exists() else blank
    if results["settings"] != settings:
        sys.exit(f"{args.out} was made with other settings ({results['settings']}); move it away first")
    data = load(args.train, args.held_out)
    for seed in range(args.seeds):
        for lamda in LAMDAS:
            for way in WAYS:
                key = f"{way}, lamda {lamda:g}, seed {seed}"
                if key not in results["runs"]:
                    results["runs"][key] = run(way, lamda, seed, schedule, data)
                    keep(results, args.out)
                print(key, results["runs"][key], flush=True)
    for name, measure in timings().items():
        if name not in results["steps"]:
            torch.manual_seed(0)
            results["steps"][name] = measure()
            keep(results, args.out)
        print(name, results["steps"][name], flush=True)
    print_tables(results, args.seeds)


def keep(results: dict[str, Any], path: pathlib.Path) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def print_tables(results: dict[str, Any], seeds: int) -> None:
    """Mean and standard deviation over the seeds, and the times of steps, as Markdown tables."""
    print("| lamda | drawn in training | NLL | NLL - NLL of weight | accuracy % | ECE % |\n|---|---|---|---|---|---|")
    for lamda in LAMDAS:
        rows = {way: [results["runs"][f"{way}, lamda {lamda:g}, seed {seed}"] for seed in range(seeds)] for way in WAYS}
        for way, own in rows.items():
            gaps = [one["nll"] - other["nll"] for one, other in zip(own, rows["weight"], strict=True)]
            cells = [f"{lamda:g}", way, spread([row["nll"] for row in own], 3)]
            cells += ["" if way == "weight" else spread(gaps, 3)]
            cells += [spread([100 * row[name] for row in own], 2) for name in ("accuracy", "ece")]
            print("| " + " | ".join(cells) + " |")
    print("\n| step of | " + " | ".join(WAYS) + " |\n|---" + "|---" * len(WAYS) + "|")
    for name, seconds in results["steps"].items():
        print("| " + " | ".join([name, *(f"{seconds[way] / seconds['plain']:.2f}" for way in WAYS)]) + " |")


def spread(values: list[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


if __name__ == "__main__":
    main()
