"""Times every way of drawing on many layers, to judge the cost model by its regret: time of its choice over the best.

python benchmarks/ways.py [--rounds 5] [--device cpu] [--out benchmarks/results/ways.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import clock, describe_machine, synchronise
from torch import nn

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.noise import Seeds
from bnn.functional.cost import Size, Way, cheapest, cost


class Case(NamedTuple):
    """A layer, and how it is called."""

    name: str
    layer: dict[str, Any]  # of nn.Linear or nn.Conv2d
    space: tuple[int, ...]  # of the input: height and width, or a length
    inputs: int
    draws: int
    m: int = 64


def conv(c_in: int, c_out: int, k: int, size: int, inputs: int, draws: int, stride: int = 1) -> Case:
    options = {
        "in_channels": c_in,
        "out_channels": c_out,
        "kernel_size": k,
        "padding": k // 2,
        "stride": stride,
        "bias": False,
    }
    name = f"conv {c_in}-{c_out} {k}x{k}/{stride} at {size}, N={inputs}, K={draws}"
    return Case(name, options, (size, size), inputs, draws)


def linear(d_in: int, d_out: int, inputs: int, draws: int, length: int = 1, m: int = 64) -> Case:
    space = () if length == 1 else (length,)
    name = f"linear {d_in}-{d_out} x{length}, N={inputs}, K={draws}, M={m}"
    return Case(name, {"in_features": d_in, "out_features": d_out}, space, inputs, draws, m)


CASES = [
    *(conv(64, 64, 3, 32, n, k) for n, k in ((1, 20), (8, 4), (64, 1))),
    *(conv(128, 128, 3, 16, n, k) for n, k in ((1, 20), (8, 8), (64, 1), (1, 1))),
    *(conv(256, 256, 3, 8, n, k) for n, k in ((1, 20), (8, 8), (64, 1), (1, 32))),
    *(conv(512, 512, 3, 4, n, k) for n, k in ((1, 20), (8, 8), (64, 1), (256, 1), (1, 1))),
    *(conv(128, 256, 3, 16, n, k, stride=2) for n, k in ((1, 20), (8, 8))),
    *(conv(64, 256, 1, 32, n, k) for n, k in ((1, 20), (8, 2))),
    *(conv(512, 128, 1, 16, n, k) for n, k in ((1, 20), (8, 8), (64, 1))),
    *(conv(256, 1024, 1, 8, n, k) for n, k in ((1, 20), (8, 8), (64, 1))),
    *(conv(1024, 256, 1, 8, n, k) for n, k in ((1, 20), (8, 8))),
    *(conv(2048, 512, 1, 4, n, k) for n, k in ((1, 20), (8, 8), (64, 1))),
    *(linear(1024, 1024, n, k, m=32) for n, k in ((1, 16), (32, 8), (256, 4))),
    *(linear(4096, 4096, n, k) for n, k in ((1, 16), (64, 2))),
    *(linear(512, 512, n, k, length=64) for n, k in ((1, 16), (16, 4))),
    linear(2048, 10, 8, 8),
]


def sampled(case: Case, device: torch.device) -> tuple[Any, torch.Tensor]:
    """The layer, and inputs (K, N, ...) that differ between draws."""
    plain = nn.Conv2d if "kernel_size" in case.layer else nn.Linear
    layer = plain(**case.layer, device=device)
    bnn.bayesianize_(layer, "inducing", inducing_rows=case.m, inducing_cols=case.m, init_lamda=0.03, max_lamda=0.03)
    if plain is nn.Linear:
        x = torch.randn(case.draws, case.inputs, *case.space, case.layer["in_features"], device=device)
    else:
        x = torch.randn(case.draws, case.inputs, *case.space, case.layer["in_channels"], device=device).movedim(-1, 2)
    return layer, x.relu()


def size_of(layer: Any, x: torch.Tensor) -> Size:
    rows = layer.rows(x.shape[1:])
    (m_out, d_out), (m_in, d_in) = layer.z_row.shape, layer.z_col.shape
    return Size(len(x), x.shape[1], rows.number, d_out, d_in, m_out, m_in, rows.gram, rows.taps)


def forced(layer: Any, way: Way, x: torch.Tensor) -> Draw:
    """Draws of the layer, one for each of the inputs (K, N, ...), by one way, as a pass of all of them makes them."""
    call = Call(layer, len(x))
    call.ways[layer] = way
    return Draw(call, len(x), Seeds(layer, 0), inputs=x.shape[1], folded=True)


def time_ways(case: Case, rounds: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of every way on one case, rounds interleaved."""
    layer, x = sampled(case, device)
    times: dict[Way, list[float]] = {way: [] for way in Way}

    def run(way: Way) -> None:
        bnn.set_sampling_(layer, "local")  # allows every way
        layer.output(x, forced(layer, way, x))
        synchronise(device)

    with torch.no_grad():
        for _ in range(rounds + 1):  # the first round warms up
            for way in Way:
                times[way].append(1e3 * clock(lambda way=way: run(way)))
    size = size_of(layer, x)
    return {
        "case": case.name,
        "size": size._asdict(),
        "ms": {way.value: statistics.median(values[1:]) for way, values in times.items()},
    }


GUARANTEES = {
    "local": list(Way),
    "auto": [Way.DENSE, Way.JOINT, Way.JOINT_WITHOUT_COLUMNS],
}


def regrets(record: dict[str, Any]) -> dict[str, float]:
    """Time of the cost model's choice over the best, for each guarantee."""
    size, ms = Size(**record["size"]), record["ms"]
    result = {}
    for sampling, ways in GUARANTEES.items():
        ways = list(Way) if size.rows == 1 else ways
        result[sampling] = ms[cheapest(ways, size).value] / min(ms[way.value] for way in ways)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ways.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    records = []
    for case in CASES:
        record = time_ways(case, args.rounds, torch.device(args.device))
        records.append(record)
        size = Size(**record["size"])
        shown = "  ".join(f"{way.value} {record['ms'][way.value]:.1f} ({cost(way, size) / 1e6:.1f})" for way in Way)
        print(
            f"{case.name:45s} {shown}  regret {regrets(record)['auto']:.2f} {regrets(record)['local']:.2f}", flush=True
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": describe_machine(torch.device(args.device)), "rounds": args.rounds, "cases": records}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for sampling in GUARANTEES:
        values = [regrets(record)[sampling] for record in records]
        print(
            f"{sampling}: regret mean {statistics.mean(values):.3f}, worst {max(values):.2f} over {len(values)} cases"
        )


if __name__ == "__main__":
    main()
