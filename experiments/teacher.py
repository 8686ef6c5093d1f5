"""Does the plain network help its converted copy as a teacher, and with which weight and temperature?

    BNN_DATA=folder python experiments/teacher.py fashion|resnet20

fashion: a CNN with 194,000 parameters, trained for 6 epochs on 10,000 images, converted to 27 % of them with the
activations of 512 and fine-tuned for 2 epochs; scored on 5,000 other training images. resnet20: the trained ResNet-20
for CIFAR-10 of `start_without_training.py`, converted to 25 % and fine-tuned for one epoch of 3,000 training images;
scored on the last 2,000 test images, as it has seen all training images. Every setting starts from the same converted
network and sees the same batches. Scores: accuracy and NLL of the mean of 5 (ResNet: 3) draws, and the NLL with a
temperature that one half of the scored images chooses for the other. Results go to experiments/results/teacher.json
after every run; runs found there are not repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from start_without_training import images, trained
from torch import Tensor, nn

import bnn

RESULTS = pathlib.Path(__file__).with_name("results") / "teacher.json"
ACTIVATIONS = 512
NONE = (0.0, 1.0)  # weight and temperature without a teacher
FEW = [NONE, (0.5, 1.0), (0.9, 2.0), (0.5, 2.0), (0.9, 1.0), (1.0, 2.0), (1.0, 1.0)]
ALL = [*FEW, (0.3, 1.0), (0.3, 2.0), (0.7, 1.0), (0.7, 2.0)]


@dataclass
class Case:
    """A trained network, its images, and how it is converted and fine-tuned."""

    plain: Callable[[int], nn.Module]
    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    budget: float
    epochs: int
    settings: list[tuple[float, float]]
    draws: int


def fashion() -> Case:
    stored = bnn.data.load_part("fashion_mnist", "train", first=15_000)
    assert stored.y is not None
    x = (stored.x.float() / 255 - 0.286) / 0.353
    train = (x[:10_000], stored.y[:10_000])

    def plain(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net = bnn.nn.nets.CNN([1, 16, 32], [32 * 7 * 7, 120, 10], padding=1)
        bnn.fit(net, train, epochs=6, lr=1e-3, cosine=True, seed=seed, progress=False)
        return net

    return Case(plain, train, (x[10_000:], stored.y[10_000:]), 0.27, 2, ALL, 5)


def resnet20() -> Case:
    x, y = images("test", 10_000)
    return Case(lambda seed: trained("resnet20"), images("train", 3_000), (x[8_000:], y[8_000:]), 0.25, 1, FEW, 3)


def converted(plain: nn.Module, case: Case, seed: int) -> nn.Module:
    net = copy.deepcopy(plain)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnn.bayesianize_(net, "ffg-u", budget=case.budget, activations=case.train[0][:ACTIVATIONS])
    return net


def fine_tuned(net: nn.Module, plain: nn.Module, case: Case, weight: float, temperature: float, seed: int) -> nn.Module:
    net = copy.deepcopy(net)
    options: dict[str, Any] = {"epochs": case.epochs, "lr": 1e-3, "cosine": True, "seed": seed, "progress": False}
    if weight:
        options |= {"teacher": plain, "teacher_weight": weight, "teacher_temperature": temperature}
    bnn.fit(net, case.train, **options)
    return net


@torch.no_grad()
def scores(net: nn.Module, x: Tensor, y: Tensor, draws: int) -> dict[str, float]:
    plain = not any(isinstance(m, bnn.nn.BayesianLayer) for m in net.modules())
    generator = torch.Generator().manual_seed(0)
    net.eval()
    logits = bnn.draws(net, x, samples=0 if plain else draws, generator=generator, batch_size=500)
    halves = [slice(0, None, 2), slice(1, None, 2)]
    calibrated = sum(nll(logits, y, test, chosen(logits, y, fit)) for fit, test in (halves, halves[::-1])) / 2
    accuracy = (logits.softmax(-1).mean(0).argmax(1) == y).double().mean().item()
    return {"accuracy": accuracy, "nll": nll(logits, y, slice(None), 1.0), "nll_calibrated": calibrated}


def nll(logits: Tensor, y: Tensor, part: slice, temperature: float) -> float:
    log_p = (logits[:, part].double() / temperature).log_softmax(-1)
    mean = log_p.logsumexp(0) - torch.tensor(len(logits)).log()
    return float(-mean.gather(1, y[part, None]).mean())


def chosen(logits: Tensor, y: Tensor, part: slice) -> float:
    return min((0.5 + 0.05 * i for i in range(60)), key=lambda temperature: nll(logits, y, part, temperature))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["fashion", "resnet20"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = fashion() if args.case == "fashion" else resnet20()
    start = f"{args.case}, seed {args.seed}"
    plain = case.plain(args.seed)
    net = converted(plain, case, args.seed)
    size = bnn.parameter_count(net) / bnn.parameter_count(plain)
    keep(f"{start}, plain", lambda: scores(plain, *case.held_out, case.draws))
    keep(f"{start}, converted", lambda: scores(net, *case.held_out, case.draws) | {"parameters": size})
    for weight, temperature in case.settings:
        name = f"w {weight:g}, T {temperature:g}" if weight else "no teacher"

        def run(weight: float = weight, temperature: float = temperature) -> dict[str, float]:
            begin = time.process_time()
            tuned = fine_tuned(net, plain, case, weight, temperature, args.seed)
            seconds = time.process_time() - begin
            return scores(tuned, *case.held_out, case.draws) | {"cpu_seconds": seconds}

        keep(f"{start}, {name}", run)


def keep(key: str, run: Callable[[], dict[str, float]]) -> None:
    """Runs what is not among the results yet, and adds it."""
    if key in _read():
        return
    found = {name: round(value, 4) for name, value in run().items()}
    results = _read() | {key: found}
    RESULTS.with_suffix(".tmp").write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.with_suffix(".tmp").replace(RESULTS)
    print(key, found, flush=True)


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


if __name__ == "__main__":
    main()
