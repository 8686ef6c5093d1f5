"""The paper's toy regression: what five posteriors say between and beyond two clusters of data.

    python examples/regression.py --out docs/images/regression.png

Trains a network of one hidden layer with 50 tanh units by each of the configurations configs/paper/regression_*.json,
with 32 draws per step, and plots the predictive mean with one, two and three standard deviations of the function.
"""

from __future__ import annotations

import argparse
import pathlib

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bnn

METHODS = {"FFG-W": "ffg_w", "FCG-W": "fcg_w", "FFG-U": "ffg_u", "FCG-U": "fcg_u", "Ensemble-U": "ensemble_u"}
CONFIGS = pathlib.Path(__file__).parents[1] / "configs" / "paper"
NOISE = 0.1


def truth(x: Tensor) -> Tensor:
    return torch.cos(4 * x + 0.8)


def data() -> tuple[Tensor, Tensor]:
    """100 points in two clusters: x (100, 1) and y (100, 1)."""
    x = torch.cat([torch.empty(50, 1).uniform_(-1, -0.7), torch.empty(50, 1).uniform_(0.5, 1)])
    return x, truth(x) + NOISE * torch.randn_like(x)


def functions(net: nn.Module, x: Tensor, samples: int) -> Tensor:
    """Outputs (samples, N, 1) of that many draws in one vectorised pass."""
    return torch.func.vmap(lambda _: net(x), randomness="different")(torch.arange(samples))


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    noise = bnn.likelihoods.Gaussian(sd=NOISE, learn=False)
    named = list(net.named_parameters())
    scales = [p for name, p in named if "._" in name and "tril" not in name]  # stored in log space: larger steps
    trils = [p for name, p in named if "tril" in name]
    others = [p for name, p in named if "._" not in name]
    groups = {5e-3: others, 1e-2: scales, 1e-3: trils}
    optimiser = torch.optim.Adam([{"params": group, "lr": lr} for lr, group in groups.items() if group])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        outputs = functions(net, x, 32)
        loss = noise(outputs.flatten(0, 1), y.repeat(32, 1)).mean() + bnn.kl_divergence(net) / len(x)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="regression.png")
    parser.add_argument("--steps", type=int, default=8000)
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y = data()
    grid = torch.linspace(-1.6, 1.6, 400)[:, None]
    figure, axes = plt.subplots(1, len(METHODS), figsize=(15, 3.2), sharey=True, layout="constrained")
    for axis, (name, config) in zip(axes, METHODS.items(), strict=True):
        net = bnn.nn.nets.make_network("fcn", sizes=[1, 50, 1], nonlinearity="Tanh")
        bnn.bayesianize_(net, **bnn.load_config(CONFIGS / f"regression_{config}.json"))
        train(net, x, y, args.steps)
        f = bnn.draws(net, grid, samples=400).detach().squeeze(-1)
        mean, sd = f.mean(0), f.std(0)
        for k in (3, 2, 1):
            axis.fill_between(grid[:, 0], mean - k * sd, mean + k * sd, color="#3b6fb6", alpha=0.18, linewidth=0)
        axis.plot(grid, mean, color="#1f4e8c", linewidth=1.8)
        axis.plot(grid, truth(grid), color="black", linewidth=1, linestyle=(0, (4, 2)))
        axis.plot(x, y, ".", color="#c8452b", markersize=3.5)
        axis.set(title=name, ylim=(-3, 3), xlim=(-1.6, 1.6))
        axis.spines[["top", "right"]].set_visible(False)
        print(name, "done", flush=True)
    path = pathlib.Path(args.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
