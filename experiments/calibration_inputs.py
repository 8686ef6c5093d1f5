"""How many validation inputs does a temperature need? A trained ResNet-20 on CIFAR-10.

    BNN_DATA=folder/with/cifar10 python -m experiments.calibration_inputs

The network predicts 4,000 test images once. Half of them are the pool of validation inputs, the other half is the test:
T is fitted, as `bnn.calibrate_` does, to 200 random subsets of each size, and NLL and ECE on the test half are compared
with those at T = 1. BNN_DATA holds CIFAR-10 as `bnn.data` reads it, and the trained weights, cifar10_resnet20.npz.
Results go to experiments/results/calibration_inputs.json.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bnn
from bnn.likelihoods import Categorical
from bnn.temperature import fitted
from experiments.data import imagenet_scaled
from experiments.nets import trained

RESULTS = pathlib.Path(__file__).with_name("results") / "calibration_inputs.json"
IMAGES = 4000
SIZES, SUBSETS = (50, 100, 200, 500, 1000), 200


def quality(outputs: Tensor, y: Tensor, t: float) -> tuple[float, float]:
    """NLL and ECE of the mixture at a temperature."""
    probs = Categorical().predictive(Categorical().tempered(outputs, t)).probs.double()
    probs = probs / probs.sum(1, keepdim=True)
    return bnn.metrics.nll(probs, y), bnn.metrics.ece(probs, y)


def row(outputs: Tensor, y: Tensor, size: int) -> dict[str, Any]:
    """What T comes to with so many validation inputs."""
    half, generator = len(y) // 2, torch.Generator().manual_seed(size)
    gaps = Categorical().gaps(outputs[:, :half], y[:half])
    chosen = [torch.randperm(half, generator=generator)[:size] for _ in range(SUBSETS)]
    ts = [fitted([gaps[:, index]])[0] for index in chosen]
    before = quality(outputs[:, half:], y[half:], 1.0)
    after = [quality(outputs[:, half:], y[half:], t) for t in ts]
    nlls, eces = (np.array(part) for part in zip(*after, strict=True))
    return {
        "inputs": size,
        "t": [float(np.quantile(ts, share)) for share in (0.05, 0.5, 0.95)],
        "nll_before": before[0],
        "nll": [float(np.quantile(nlls, share)) for share in (0.05, 0.5, 0.95)],
        "ece_before": before[1],
        "ece": [float(np.quantile(eces, share)) for share in (0.05, 0.5, 0.95)],
        "better_nll": float((nlls < before[0]).mean()),
    }


def main() -> None:
    test = imagenet_scaled().test
    assert test is not None
    assert test.y is not None
    x, y = test.inputs(slice(0, IMAGES)), test.y[:IMAGES]
    with torch.no_grad():
        outputs = bnn.draws(trained("cifar_resnet20"), x, samples=0, batch_size=250)  # (1, N, 10)
    rows = []
    for size in SIZES:
        rows.append(row(outputs, y, size))
        print(json.dumps(rows[-1]), flush=True)
    record = {"torch": torch.__version__, "images": IMAGES, "subsets": SUBSETS, "rows": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
