"""Variance of the whole gradient under `auto` and `local` relative to `weight`, on a converted three-block ResNet.

    python experiments/gradient_variance.py [--draws 100] [--epochs 3] [--threads 1] [--out FILE]

The network is trained for a few epochs on scikit-learn's digits first, so that gradients are those of training. Then
the gradient of the data term is drawn many times on one fixed batch; its variance is summed over all parameters.
Intervals are percentile bootstraps over the draws. BatchNorm in train mode couples the inputs of a batch, so `auto`
draws weights there and equals `weight`; with fixed statistics (eval mode, as in fine-tuning) it is free. About ten
minutes on one thread. experiments/results/gradient_variance.json is written anew after every lamda.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bnn
from bnn.nn.nets.resnet import BasicBlock

SAMPLINGS = ("weight", "auto", "local")
LAMDAS = (0.03, 0.1, 0.3)


def network() -> nn.Module:
    """A stem, three blocks of 64, 128 and 256 channels, and a head, for images (1, 8, 8)."""
    blocks = [BasicBlock(64, 64, 1), BasicBlock(64, 128, 2), BasicBlock(128, 256, 2)]
    stem = [nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def trained(lamda: float, epochs: int, x: Tensor, y: Tensor) -> nn.Module:
    """The converted network after a short training."""
    net = network()
    options = {"inducing_rows": 16, "inducing_cols": 16, "init_lamda": lamda, "learn_lamda": False, "max_sd_u": 0.1}
    bnn.bayesianize_(net, "inducing", sqrt_width_scaling=True, **options)
    elbo = bnn.ELBO(net, len(x), "categorical", kl_weight=0.1)
    optimiser = torch.optim.Adam(bnn.parameter_groups(net, lr=2e-3))
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            elbo(x[index], y[index]).loss.backward()
            optimiser.step()
    return net


def gradients(net: nn.Module, x: Tensor, y: Tensor, draws: int) -> Tensor:
    """Draws (draws, parameters) of the gradient of the data term on one batch."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    rows = []
    for _ in range(draws):
        loss = nn.functional.cross_entropy(net(x), y)
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        rows.append(torch.cat([g.flatten() for g in grads if g is not None]))
    return torch.stack(rows)


def ratio_with_interval(one: Tensor, other: Tensor, resamples: int = 1000, seed: int = 0) -> tuple[float, float, float]:
    """The ratio of total variances of two sets of draws, and its 95 % bootstrap interval.

    The total variance is mean |g_i - mean g|^2 over draws: resampled through the squared distances to the mean.
    """
    distances = [((g - g.mean(0)) ** 2).sum(1).double().numpy() * len(g) / (len(g) - 1) for g in (one, other)]
    generator = np.random.default_rng(seed)
    means = [[d[generator.integers(len(d), size=len(d))].mean() for _ in range(resamples)] for d in distances]
    low, high = np.percentile(np.array(means[0]) / np.array(means[1]), [2.5, 97.5])
    return float(distances[0].mean() / distances[1].mean()), float(low), float(high)


def variances(net: nn.Module, mode: str, x: Tensor, y: Tensor, draws: int) -> list[dict[str, Any]]:
    """Ratios of the total variance to that under `weight`, for BatchNorm in one mode."""
    net.train(mode == "train")
    state = {name: value.clone() for name, value in net.state_dict().items()}
    found = {}
    for sampling in SAMPLINGS:
        bnn.set_sampling_(net, sampling)
        found[sampling] = gradients(net, x, y, draws)
        net.load_state_dict(state)  # running statistics
    rows = []
    for sampling in SAMPLINGS[1:]:
        ratio, low, high = ratio_with_interval(found[sampling], found["weight"])
        rows.append({"mode": mode, "sampling": sampling, "ratio": ratio, "interval": [low, high]})
    return rows


def main() -> None:
    root = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=root / "results" / "gradient_variance.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16 - 0.3, torch.tensor(data.target)
    about = {"draws": args.draws, "epochs": args.epochs, "seed": args.seed, "date": time.strftime("%Y-%m-%d")}
    result: dict[str, Any] = about | {"torch": torch.__version__, "rows": []}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for lamda in LAMDAS:
        net = trained(lamda, args.epochs, x, y)
        for mode in ("eval", "train"):
            for row in variances(net, mode, x[:64], y[:64], args.draws):
                result["rows"].append({"lamda": lamda} | row)
                shown = "{:.3f} [{:.3f}, {:.3f}]".format(row["ratio"], *row["interval"])
                print(f"lamda={lamda:g} {mode:5s} {row['sampling']:5s} / weight: {shown}", flush=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
