"""How much of a trained network survives the conversion, without any training? ResNet-20 and ResNet-56 on CIFAR-10.

    BNN_DATA=folder/with/cifar10 python experiments/start_without_training.py

Accuracy at the posterior mean on the first 2,000 test images, right after `bnn.bayesianize_`, from 512 unlabelled
training images (`activations=`) or from the weights alone, with the paper's matrix or split kernels. Every convolution
but the first has the largest rank within the given fraction of its parameters; the first and the last layer stay as
they are. BNN_DATA holds CIFAR-10 as `bnn.data` reads it, and the trained weights, cifar10_resnet20.npz and
cifar10_resnet56.npz. Results go to experiments/results/start_without_training.json after every run; runs found there
are not repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import subprocess
import time
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn.functional.kernels import matrix_shape

RESULTS = pathlib.Path(__file__).with_name("results") / "start_without_training.json"
BLOCKS = {"resnet20": 3, "resnet56": 9}  # per stage
FRACTIONS = (0.25, 0.5)
STARTS = [(kernel, weighted) for kernel in ("paper", "split") for weighted in (False, True)]
IMAGES, TEST = 512, 2000
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what these weights were trained with


class Block(nn.Module):
    """Two convolutions and a skip; where it halves the image, the skip is strided and padded with zero channels."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.stride, self.more = stride, c_out - c_in

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        skip = x[:, :, :: self.stride, :: self.stride]
        return F.relu(h + F.pad(skip, (0, 0, 0, 0, self.more // 2, self.more // 2)))


class CifarResNet(nn.Module):
    """The ResNet for CIFAR-10 of 6 n + 2 layers (He et al., 2016)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = stage(16, 16, 1, n), stage(16, 32, 2, n), stage(32, 64, 2, n)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def stage(c_in: int, c_out: int, stride: int, n: int) -> nn.Sequential:
    return nn.Sequential(*(Block(c_out if i else c_in, c_out, 1 if i else stride) for i in range(n)))


def trained(name: str) -> CifarResNet:
    net = CifarResNet(BLOCKS[name])
    with np.load(pathlib.Path(os.environ["BNN_DATA"]) / f"cifar10_{name}.npz") as stored:
        state = {key: torch.from_numpy(stored[key]) for key in stored.files}
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing), missing
    return net.eval()


def images(part: str, first: int) -> tuple[Tensor, Tensor]:
    stored = bnn.data.load_part("cifar10", part, first=first)
    assert stored.y is not None
    mean, sd = (torch.tensor(values)[:, None, None] for values in (MEAN, SD))
    return (stored.x.float() / 255 - mean) / sd, stored.y


def rank_within(layer: nn.Conv2d, fraction: float, kernel: str) -> int:
    """The largest M = M_out = M_in of a diagonal q(U) within a fraction of the layer's parameters."""
    rows, cols = matrix_shape(layer.weight.shape, layer.bias is not None, kernel)
    m = 1
    while (m + 1) * (rows + cols) + 2 * (m + 1) ** 2 + 2 * (m + 1) + 1 <= fraction * layer.weight.numel():
        m += 1
    return m


def converted(plain: CifarResNet, fraction: float, kernel: str, activations: Tensor | None) -> CifarResNet:
    net = copy.deepcopy(plain)
    inference: dict[Any, Any] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d) and name != "conv1":
            m = rank_within(layer, fraction, kernel)
            inference[name] = {"inference": "inducing", "inducing_rows": m, "inducing_cols": m, "kernel": kernel}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how little plain truncation keeps is what is measured here
        bnn.bayesianize_(net, inference, max_lamda=0, max_sd_u=0, activations=activations)
    return net.eval()


@torch.no_grad()
def scores(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    logits = torch.cat([net(batch) for batch in x.split(500)])
    right = (logits.argmax(1) == y).double()
    first = right[: len(y) // 2]
    return {
        "accuracy": right.mean().item(),
        "accuracy_first_half": first.mean().item(),
        "nll": F.cross_entropy(logits, y).item(),
    }


def share(plain: nn.Module, net: nn.Module) -> float:
    """Parameters of the converted layers, as a fraction of what they had."""
    names = [name for name, m in net.named_modules() if isinstance(m, bnn.nn.InducingConv2d)]
    after = sum(p.numel() for name in names for p in net.get_submodule(name).parameters())
    return after / sum(p.numel() for name in names for p in plain.get_submodule(name).parameters())


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="+", default=list(BLOCKS), choices=list(BLOCKS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    results["settings"] = {"images": IMAGES, "test": TEST, "torch": torch.__version__, "threads": args.threads}
    results["settings"] |= {"commit": commit()}
    x, _ = images("train", IMAGES)
    test = images("test", TEST)
    for name in args.networks:
        plain = trained(name)
        results["runs"].setdefault(f"{name}, plain", scores(plain, *test))
        for fraction in FRACTIONS:
            for kernel, weighted in STARTS:
                key = f"{name}, {fraction:.0%}, {kernel}, {'activations' if weighted else 'weights'}"
                if key in results["runs"]:
                    continue
                torch.manual_seed(0)
                begin = time.time()
                net = converted(plain, fraction, kernel, x if weighted else None)
                seconds = time.time() - begin
                results["runs"][key] = scores(net, *test) | {"parameters": share(plain, net), "seconds": seconds}
                RESULTS.parent.mkdir(exist_ok=True)
                partial = RESULTS.with_suffix(".tmp")
                partial.write_text(json.dumps(results, indent=1) + "\n")
                partial.replace(RESULTS)
                print(key, results["runs"][key], flush=True)
    print_table(results["runs"], args.networks)


def print_table(runs: dict[str, dict[str, float]], networks: list[str]) -> None:
    """Accuracies in per cent, as a Markdown table."""
    print("| start | " + " | ".join(f"{name}, {f:.0%}" for name in networks for f in FRACTIONS) + " |")
    print("|---" * (1 + len(networks) * len(FRACTIONS)) + "|")
    for kernel, weighted in STARTS:
        start = f"{kernel}, {'activations' if weighted else 'weights'}"
        cells = [f"{100 * runs[f'{name}, {f:.0%}, {start}']['accuracy']:.1f}" for name in networks for f in FRACTIONS]
        print(f"| {start} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
