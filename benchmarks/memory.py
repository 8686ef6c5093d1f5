"""Peak memory of `predict` at batch 64, K=8, against one deterministic pass at batch 64 x 8.

    python benchmarks/memory.py [--nets resnet18 resnet50] [--threads 2] [--out FILE]

Each contestant runs in a process of its own; what counts is how far its peak rises above the memory it holds before.
Takes about ten minutes, nine tenths of it for ResNet-50. A whole run writes benchmarks/results/memory.json; a choice of
networks is written only with --out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import describe_machine, write

import bnn
from bnn.nn.nets import make_network

NETS = ("resnet18", "resnet50")
CONTESTANTS = ("deterministic", "auto", "lamda=0", "weight")
BATCH, DRAWS = 64, 8


def measure(name: str, contestant: str) -> float:
    """MiB by which the peak of one run rises."""
    net = make_network(name, out_features=10, kernel_size=3, remove_maxpool=True).eval()
    options = {"auto": {"init_lamda": 0.03}, "lamda=0": {"max_lamda": 0}, "weight": {"sampling": "weight"}}
    x = torch.randn(BATCH, 3, 32, 32)
    if contestant in options:
        bnn.bayesianize_(net, "inducing", inducing_rows=64, inducing_cols=64, **options[contestant])
    with torch.no_grad():
        net(x[:1])  # what libraries keep
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = kib("VmRSS")
        if contestant == "deterministic":
            net(x.repeat(DRAWS, 1, 1, 1))
        else:
            bnn.predict(net, x, samples=DRAWS)
    return (kib("VmHWM") - before) / 1024


def kib(name: str) -> int:
    """A figure of this process from the kernel: memory in use (VmRSS), or its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--only", nargs=2, metavar=("NET", "CONTESTANT"), help="measure one in this process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.only:
        print(measure(*args.only))
        return
    same = ["--threads", str(args.threads), "--seed", str(args.seed)]
    rows = []
    for net in args.nets:
        print(
            f"peak memory, {net}, batch {BATCH}, K={DRAWS} (deterministic: batch {BATCH * DRAWS})", end="", flush=True
        )
        peak = {}
        for contestant in CONTESTANTS:
            command = [sys.executable, __file__, *same, "--only", net, contestant]
            peak[contestant] = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"   {contestant} {peak[contestant]:.0f} MiB", end="", flush=True)
        print()
        rows.append({"net": net, "batch": BATCH, "draws": DRAWS, "peak_mib": peak})
    result = {"machine": describe_machine(torch.device("cpu")), "seed": args.seed, "date": time.strftime("%Y-%m-%d")}
    write(result | {"rows": rows}, args.out, default="memory.json", complete=set(args.nets) == set(NETS))


if __name__ == "__main__":
    main()
