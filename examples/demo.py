"""A network and its inducing-weight twin on handwritten digits: fewer parameters, and it knows when it does not know.

    make demo

Trains a small CNN on scikit-learn's digits, turns a copy of it into a Bayesian network with a fifth of the parameters,
trains that by the ELBO, and compares the two on test digits and on inputs that are no digits at all.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits, load_sample_images
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import bnn

Data = tuple[Tensor, Tensor]
BATCH = 64


def digits() -> tuple[Data, Data]:
    """Training and test digits: images (N, 1, 8, 8) in [0, 1] and labels (N,)."""
    x, y = load_digits(return_X_y=True)
    images = torch.from_numpy(x.reshape(-1, 1, 8, 8) / 16).float()
    train, test = train_test_split(np.arange(len(y)), test_size=0.4, random_state=0, stratify=y)
    labels = torch.from_numpy(y).long()
    return (images[train], labels[train]), (images[test], labels[test])


def not_digits(test: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Inputs that no training digit resembles, as many as test digits each."""
    rng = np.random.default_rng(seed)
    photos = [image.mean(-1) / 255 for image in load_sample_images().images]  # two photographs ship with scikit-learn
    corners = [(p, rng.integers(p.shape[0] - 32), rng.integers(p.shape[1] - 32)) for p in photos * (len(test) // 2 + 1)]
    patches = np.stack([p[i : i + 32 : 4, j : j + 32 : 4] for p, i, j in corners[: len(test)]])
    return {
        "inverted digits": 1 - test,
        "photo patches": torch.from_numpy(patches).float()[:, None],
        "noise": torch.from_numpy(rng.uniform(size=test.shape)).float(),
    }


def network() -> nn.Module:
    """A small CNN for 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(
    name: str, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], data: Data, epochs: int, bar: Progress
) -> None:
    """Trains `net` by Adam with a cosine schedule, showing progress."""
    x, y = data
    named = list(net.named_parameters())
    scales = [p for name, p in named if name.rpartition(".")[2].startswith("_")]  # sds and lamda: stored in log space,
    others = [p for name, p in named if not name.rpartition(".")[2].startswith("_")]  # so they need larger steps
    optimiser = torch.optim.Adam([{"params": others, "lr": 1e-3}, {"params": scales, "lr": 5e-2}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    task = bar.add_task(name, total=epochs)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            loss(x[batch], y[batch]).backward()
            optimiser.step()
        schedule.step()
        bar.update(task, advance=1)
    net.eval()


def predict(net: nn.Module, x: Tensor) -> Tensor:
    """Probabilities (N, 10): of one pass for a plain network, averaged over 20 draws for a Bayesian one."""
    if any(isinstance(module, bnn.nn.BayesianLayer) for module in net.modules()):
        return bnn.predict(net, x, samples=20, generator=torch.Generator().manual_seed(0)).probs
    with torch.no_grad():
        return net(x).softmax(1)


def entropy(probs: Tensor) -> Tensor:
    """The entropy (N,) of predictions (N, C), in nats; log 10 = 2.30 says "no idea"."""
    return torch.special.entr(probs).sum(1)


def compare(nets: dict[str, nn.Module], test: Data, strange: dict[str, Tensor]) -> tuple[Table, Table]:
    """Two tables: quality on test digits, and where the predictive entropy goes on inputs that are no digits."""
    quality = Table(
        "", "parameters", "accuracy", "NLL", "ECE", title="1,797 digits, 60 % for training", title_justify="left"
    )
    surprise = Table(
        "predictive entropy on", *nets, title="nats; in brackets: AUROC against test digits", title_justify="left"
    )
    base = bnn.parameter_count(next(iter(nets.values())))
    known = {}
    for name, net in nets.items():
        probs = known[name] = predict(net, test[0])
        curve = bnn.calibration.calibration_curve(probs.numpy(), test[1].numpy(), num_bins=10)
        count = bnn.parameter_count(net)
        quality.add_row(
            name,
            f"{count:,} ({count / base:.0%})",
            f"{(probs.argmax(1) == test[1]).float().mean():.1%}",
            f"{F.nll_loss(probs.clamp(min=1e-12).log(), test[1]):.3f}",
            f"{bnn.calibration.expected_calibration_error(*curve):.1%}",
        )
    surprise.add_row("test digits", *(f"{entropy(probs).mean():.2f}" for probs in known.values()))
    for kind, x in strange.items():
        cells = []
        for name, net in nets.items():
            odd = entropy(predict(net, x))
            labels = [0] * len(test[0]) + [1] * len(odd)
            auroc = roc_auc_score(labels, torch.cat([entropy(known[name]), odd]).numpy())
            cells.append(f"{odd.mean():.2f}  ({auroc:.3f})")
        surprise.add_row(kind, *cells)
    return quality, surprise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--epochs", type=int, default=30, help="epochs of the plain network; the twin gets as many again"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other
    training, test = digits()
    console = Console()
    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeRemainingColumn(),
    )
    plain = network()
    with Progress(*columns, console=console) as bar:
        train("deterministic", plain, lambda x, y: F.cross_entropy(plain(x), y), training, args.epochs, bar)
        twin = copy.deepcopy(plain)
        bnn.bayesianize_(
            twin,
            inference="inducing",
            inducing_rows=16,
            inducing_cols=16,
            sqrt_width_scaling=True,
            init_lamda=0.2,
            max_lamda=0.2,
            max_sd_u=0.3,
        )
        elbo = bnn.ELBO(twin, num_data=len(training[0]), likelihood="categorical")
        train("inducing twin", twin, lambda x, y: elbo(x, y).loss, training, args.epochs, bar)
    for table in compare({"deterministic": plain, "inducing twin": twin}, test, not_digits(test[0])):
        console.print(table)


if __name__ == "__main__":
    main()
