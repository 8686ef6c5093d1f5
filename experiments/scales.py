"""Which scales suit a converted network? A small trained CNN on 10,000 images of Fashion-MNIST, three seeds.

    BNN_DATA=folder/with/fashion_mnist python experiments/scales.py

The sds of q(U) start at a number, or in proportion to rms(u), layer by layer; the prior sd is that of the methods,
8 / sqrt(d_in), or the root mean square of the weights. Results go to experiments/results/scales.json after every run;
runs found there are not repeated.
"""

from __future__ import annotations

import copy
import itertools
import json
import pathlib
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn.functional.linalg import inverse_softplus

SDS = {"1e-3": (1e-3, False), "1e-3 rms(u)": (1e-3, True), "1e-2 rms(u)": (1e-2, True)}
PRIORS: dict[str, dict[str, Any]] = {
    "8 / sqrt(d_in)": {"prior_sd": 8.0, "sqrt_width_scaling": True},
    "weights": {"prior_sd": "weights"},
}
OPTIONS = {"budget": 0.25, "max_lamda": 0.03, "init_lamda": 0.03, "max_sd_u": 0.1}
RESULTS = pathlib.Path(__file__).with_name("results") / "scales.json"


def load(name: str, first: int) -> tuple[Tensor, Tensor]:
    part = bnn.data.load_part("fashion_mnist", name, first=first)
    assert part.y is not None
    return part.x.float() / 127.5 - 1, part.y


def set_sds_(net: nn.Module, start: float, relative: bool) -> None:
    for layer in net.modules():
        if isinstance(layer, bnn.nn.BayesianLayer):
            u: Tensor = layer.inducing_mean.detach()
            sd = start * (u.square().mean().sqrt() if relative else torch.ones(()))
            with torch.no_grad():
                layer._inducing_sd.fill_(inverse_softplus(sd.clamp(max=0.1)).item())


def evaluate(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    prediction = bnn.predict(net, x, samples=8, batch_size=1000, generator=torch.Generator().manual_seed(1))
    probs = prediction.probs
    curve = bnn.calibration.calibration_curve(probs.double().numpy(), y.numpy(), num_bins=15)
    sds = torch.cat([m.sds_and_cap()[0].flatten() for m in net.modules() if isinstance(m, bnn.nn.BayesianLayer)])
    return {
        "accuracy": (probs.argmax(1) == y).double().mean().item(),
        "nll": F.nll_loss(probs.clamp(min=1e-12).log(), y).item(),
        "ece": bnn.calibration.expected_calibration_error(*curve),
        "mutual information": prediction.epistemic.mean().item(),
        "sd of u, mean": sds.mean().item(),
        "kl": bnn.kl_divergence(net).item(),
    }


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    train, test = load("train", 10_000), load("test", 10_000)
    for seed in (0, 1, 2):
        runs = [f"{prior}; {sd}; {seed}" for prior, sd in itertools.product(PRIORS, SDS)]
        if all(run in found for run in runs):
            continue
        torch.manual_seed(seed)
        plain = bnn.nn.nets.make_network("cnn", channels=[1, 16, 32, 64], lin_sizes=[576, 64, 10], padding=1)
        bnn.fit(plain, train, epochs=5, lr=2e-3, cosine=True, seed=seed, progress=False)
        for prior, sd in itertools.product(PRIORS, SDS):
            if (run := f"{prior}; {sd}; {seed}") in found:
                continue
            net, start = copy.deepcopy(plain), time.monotonic()
            torch.manual_seed(seed)
            bnn.bayesianize_(net, "inducing", **OPTIONS, **PRIORS[prior])
            set_sds_(net, *SDS[sd])
            bnn.fit(net, train, epochs=3, lr=1e-3, cosine=True, kl_weight=0.1, seed=seed, progress=False)
            found[run] = evaluate(net, *test) | {"seconds": round(time.monotonic() - start, 1)}
            RESULTS.write_text(json.dumps({"torch": torch.__version__} | found, indent=1) + "\n")
            print(run, {key: round(value, 4) for key, value in found[run].items()}, flush=True)


if __name__ == "__main__":
    main()
