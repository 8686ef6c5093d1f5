"""What share of a training step the augmentation and scaling of its batch would take.

    python benchmarks/augment.py [--batch 100] [--rounds 15] [--threads 2] [--out FILE]

The batch is of CIFAR's shape, uint8 as stored; it is cropped, flipped and scaled to floats, then a plain network makes
one step of Adam on it. Prints JSON with median times over interleaved rounds and their ratios; goals: a tenth of a
step, and 2 ms for 100 images. Ends with status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, medians
from contestants import plain_step
from torch import nn

from bnn.data.images import Augment, ImageScaling
from bnn.nn.nets import CNN, make_network

SCALING = ImageScaling(mean=(0.4914, 0.4822, 0.4465), sd=(0.2470, 0.2435, 0.2616))  # CIFAR-10's training part
SHARE, MILLISECONDS = 0.1, 0.02  # goals: of a step, and per image


def networks() -> dict[str, nn.Module]:
    """A ResNet-18 with the stem for small images, and a convolutional network of 356,810 parameters."""
    return {
        "resnet18": make_network("resnet18", out_features=10, kernel_size=3, remove_maxpool=True),
        "cnn": CNN([3, 32, 64, 128], [128 * 4 * 4, 128, 10], padding=1),
    }


def measure(batch: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of the preparation and of steps, and ratios."""
    images = torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (batch,)).to(device)
    generator, augment = torch.Generator().manual_seed(0), Augment()
    inputs = SCALING(images).to(device)
    contestants: dict[str, Callable[[], Any]] = {
        "augment": lambda: augment(images, generator),
        "augment and scale": lambda: SCALING(augment(images, generator)),
    }
    contestants |= {name: plain_step(net.to(device), inputs, labels) for name, net in networks().items()}
    times = {name: 1000 * seconds for name, seconds in medians(contestants, rounds, device).items()}
    ratios = {name: times["augment and scale"] / times[name] for name in networks()}
    met = max(ratios.values()) < SHARE and times["augment and scale"] < MILLISECONDS * batch
    return {"batch": batch, "milliseconds": times, "share of a step": ratios, "goals met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of the network; images are prepared on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    result = {"machine": describe_machine(device), "seed": args.seed, "rounds": args.rounds}
    result |= measure(args.batch, args.rounds, device)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")
    sys.exit(0 if result["goals met"] else 1)


if __name__ == "__main__":
    main()
