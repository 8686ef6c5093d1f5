"""What three compressed networks without noise cost, with and without Laplace: beside a deep ensemble of three.

    python benchmarks/ensemble.py [--only '*/100'] [--rounds 40] [--out FILE]

The CNN of the Fashion-MNIST table (188,234 parameters) with random weights and inputs, batch 1, 100 and 1,000. All are
predicted by `bnn.predict`; the named baseline is the deep ensemble of three plain CNNs, the bar is its time:

- deep ensemble: three plain networks.
- point: three networks of `point-u` at 27 % of the parameters, smaller by what Laplace will take.
- laplace, K=...: the same with Laplace over 96 of the 128 directions of the last layer, K draws in all.
- laplace, logits: the same with `samples="logits"`.

One thread, seconds of the processor, which other programs do not change much; contestants take turns, ratios are of
medians: to the deep ensemble, and to one pass of the plain network by `bnn.predict`. A whole run writes
benchmarks/results/ensemble.json; a choice of rows is written only with --out.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from common import chosen, cpu_medians, heading, report, write
from small import NETWORKS
from torch import Tensor, nn

import bnn
from bnn.nn.base import BayesianLayer

CNN = "cnn188k"
MEMBERS, FRACTION, DIRECTIONS = 3, 0.27, 96
DRAWS = (48, 21, 6)  # of all members together
ACTIVATIONS = 512  # inputs, for conversion and curvature
BASELINE = "deep ensemble"
BATCHES = (1, 100, 1000)


def networks() -> dict[str, nn.Module]:
    """The plain network, three of them, three compressed ones, and these with Laplace."""
    plain = [NETWORKS[CNN].build().eval() for _ in range(MEMBERS)]
    x = torch.randn(ACTIVATIONS, *NETWORKS[CNN].shape)
    y = torch.randint(NETWORKS[CNN].classes, (ACTIVATIONS,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random weights lose their energy
        point = bnn.Ensemble(compressed(plain, x)).eval()
        laplace = copy.deepcopy(point)
        bnn.laplace_(laplace, (x, y), prior_precision=1.0, inducing_cols=DIRECTIONS, progress=False)
    return {"plain": plain[0], BASELINE: bnn.Ensemble(plain).eval(), "point": point, "laplace": laplace}


def compressed(plain: list[nn.Module], x: Tensor) -> list[nn.Module]:
    """Copies in inducing form without noise, all of the sizes that the first one gets."""
    nets = copy.deepcopy(plain)
    head: Any = copy.deepcopy(plain[0][-1])  # type: ignore[index]
    before = bnn.parameter_count(head)
    data = (torch.randn(100, head.in_features), torch.randint(head.out_features, (100,)))
    bnn.laplace_(head, data, prior_precision=1.0, inducing_cols=DIRECTIONS, progress=False)
    room = bnn.parameter_count(head) - before
    budget = round(FRACTION * bnn.parameter_count(nets[0])) - room
    bnn.bayesianize_(nets[0], "inducingdeterministic", budget=budget, activations=x, max_sd_u=0)
    names = ("inducing_rows", "inducing_cols", "kernel")
    sizes = {
        name: {"inference": "inducingdeterministic", "max_sd_u": 0}
        | {key: getattr(layer.options, key) for key in names}
        for name, layer in nets[0].named_modules()
        if isinstance(layer, BayesianLayer)
    }
    for net in nets[1:]:
        bnn.bayesianize_(net, sizes, activations=x)
    return nets


def measure(row: str, nets: dict[str, nn.Module], rounds: int) -> dict[str, Any]:
    """One row: seconds of all contestants, ratios to the deep ensemble and to a plain pass, bars."""
    x = torch.randn(int(row.split("/")[1]), *NETWORKS[CNN].shape)
    of_laplace = {f"laplace, K={k}": ("laplace", k) for k in DRAWS} | {"laplace, logits": ("laplace", "logits")}
    asked = {"plain": ("plain", 0), BASELINE: (BASELINE, MEMBERS), "point": ("point", MEMBERS)} | of_laplace
    contestants = {label: lambda of=of: bnn.predict(nets[of[0]], x, samples=of[1]) for label, of in asked.items()}
    seconds = cpu_medians(contestants, rounds)
    ratios = {label: seconds[label] / seconds[BASELINE] for label in asked if label not in ("plain", BASELINE)}
    bars = dict.fromkeys(ratios, 1.0) if row.endswith("/100") else {}
    report(row, ratios, bars)
    passes = {label: seconds[label] / seconds["plain"] for label in asked if label != "plain"}
    print(
        f"{'in plain passes':45s} {'   '.join(f'{label} {value:.2f}' for label, value in passes.items())}", flush=True
    )
    return {
        "row": row,
        "seconds": seconds,
        "baseline": BASELINE,
        "ratios": ratios,
        "plain_passes": passes,
        "bars": bars,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="GLOB", help="rows to time, by name; default: all")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    torch.set_num_threads(1)  # seconds of the processor count what threads wait, too
    torch.manual_seed(args.seed)
    rows = [f"{CNN}/{batch}" for batch in BATCHES]
    names = chosen(rows, args.only)
    print("times relative to a deep ensemble of three plain networks, medians of interleaved rounds")
    nets = networks()
    shares = {name: bnn.parameter_count(net) / bnn.parameter_count(nets["plain"]) for name, net in nets.items()}
    result = heading(args, torch.device("cpu")) | {"clock": "processor", "parameters": shares}
    result["rows"] = [measure(row, nets, args.rounds) for row in names]
    write(result, args.out, default="ensemble.json", complete=names == rows)


if __name__ == "__main__":
    main()
