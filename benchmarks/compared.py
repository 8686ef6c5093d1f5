"""One side of a comparison: runs the rows that `compare.py` asks for, on whichever `bnn` PYTHONPATH leads to.

A line of JSON comes in, {"row": name, "calls": n}, and one goes out: {"seconds": of all n calls}, or {"error": why a
row cannot run}. The first line out says what was imported: {"bnn": folder}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import small
import torch
from common import clock, repeated
from contestants import (
    DENSE,
    IMAGE,
    converted,
    dense,
    no_grad_draws,
    resnet,
    training_step,
    variant,
    warmed,
)
from speed import CALLS, DENSE_CALLS, NETS, PREDICTING, TRAINING
from torch import nn

import bnn

CPU = torch.device("cpu")


def row_names() -> list[str]:
    """Names of all rows, part/network/column/batch x K; rows that share a network stand together."""
    small_calls = {
        name: [*(f"{batch}x{network.draws}" for batch in network.batches), "step100"]
        for name, network in small.NETWORKS.items()
    }
    return [
        *(f"small/{net}/{label}/{call}" for net in small_calls for label in small.OPTIONS for call in small_calls[net]),
        *(f"dense/{net}/{label}/{n}x{k}" for net in DENSE for label in ("lamda=0", "auto") for n, k in DENSE_CALLS),
        *(f"predict/{net}/{label}/{n}x{k}" for net in NETS for label in PREDICTING for n, k in CALLS),
        *(f"train/resnet18/{label}/64" for label in TRAINING),
    ]


def contestant(row: str) -> Callable[[], Any]:
    """What a row times."""
    part, name, label, call = row.split("/")
    if part == "train":
        x, y = torch.randn(int(call), *IMAGE), torch.randint(10, (int(call),))
        return training_step(variant(resnet(name, CPU), label), x, y)
    if part == "small" and call.startswith("step"):
        network, batch = small.NETWORKS[name], int(call.removeprefix("step"))
        x, y = torch.randn(batch, *network.shape), torch.randint(network.classes, (batch,))
        return training_step(converted(network.build(), m=network.m, **small.OPTIONS[label]), x, y)
    net, shape = predicting(part, name, label)
    batch, k = map(int, call.split("x"))
    x = torch.randn(batch, *shape)
    return (lambda: no_grad_draws(net, x, k)) if part == "dense" else (lambda: bnn.predict(net, x, samples=k))


@lru_cache(maxsize=1)
def predicting(part: str, name: str, label: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A converted network in eval mode, and the shape of one input; rows that follow each other share it."""
    if part == "small":
        network = small.NETWORKS[name]
        return converted(network.build(), m=network.m, **small.OPTIONS[label]), network.shape
    if part == "dense":
        _, m, width = DENSE[name]
        return variant(dense(name, CPU), label, m), (width,)
    return variant(plain_resnet(name), label), IMAGE


@lru_cache(maxsize=1)
def plain_resnet(name: str) -> nn.Module:
    """The plain network of several columns."""
    return warmed(resnet(name, CPU), IMAGE, CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps({"bnn": str(Path(bnn.__file__).parent)}), flush=True)
    current, run = "", None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["row"] != current:
                run = None  # the network before may go
                torch.manual_seed(args.seed)
                current, run = asked["row"], contestant(asked["row"])
            assert run is not None
            answer: dict[str, Any] = {"seconds": clock(repeated(run, asked["calls"]))}
        except Exception as error:  # an older version may lack what the row needs
            current, answer = "", {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
