"""What uncertainty costs where only the last layer is Bayesian, as after `bnn.laplace_`: over one plain pass.

    python benchmarks/last_layer.py [--only 'resnet18/*'] [--rounds 15] [--threads 2] [--device cpu] [--out FILE]

Rows are named network/batch. The plain network, `bnn.predict` with K = 20 draws and with `samples="logits"` take turns;
short calls are repeated until the shortest turn takes 2 ms. Ratios are of medians, to one pass of the plain
network, and the bar of both is 1.1: what comes before the last layer runs once.

A whole run writes benchmarks/results/last_layer.json; a choice of rows is written only with --out.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from common import chosen, heading, medians, report, write
from contestants import IMAGE, passes, resnet
from small import NETWORKS, SHORT_TURN

import bnn

DRAWS = 20
BAR = 1.1
CNN = "cnn188k"
ROWS = ("resnet18/1", "resnet18/8", "resnet18/64", f"{CNN}/100")
CURVATURE = 64  # inputs: how many there are does not change what a prediction costs


def measure(row: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """One row: seconds of all contestants, ratios to the plain network, bars."""
    name, batch = row.split("/")
    small = name == CNN
    plain = (NETWORKS[name].build().to(device) if small else resnet(name, device)).eval()
    shape = NETWORKS[name].shape if small else IMAGE
    net = copy.deepcopy(plain)
    y = torch.randint(10, (CURVATURE,), device=device)
    bnn.laplace_(net, (torch.randn(CURVATURE, *shape, device=device), y), progress=False)
    x = torch.randn(int(batch), *shape, device=device)
    contestants = {
        "plain": lambda: passes(plain, x, 1),
        f"K={DRAWS}": lambda: bnn.predict(net, x, samples=DRAWS),
        "logits": lambda: bnn.predict(net, x, samples="logits"),
    }
    seconds = medians(contestants, rounds, device, least=SHORT_TURN)
    ratios = {label: seconds[label] / seconds["plain"] for label in contestants if label != "plain"}
    bars = dict.fromkeys(ratios, BAR)
    report(row, ratios, bars)
    return {"row": row, "batch": int(batch), "draws": DRAWS, "seconds": seconds, "ratios": ratios, "bars": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="GLOB", help="rows to time, by name; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    names = chosen(ROWS, args.only)
    print("times relative to one plain pass, medians of interleaved rounds")
    result = heading(args, device) | {"rows": [measure(row, args.rounds, device) for row in names]}
    write(result, args.out, default="last_layer.json", complete=set(names) == set(ROWS))


if __name__ == "__main__":
    main()
