"""Peak memory of `predict` at batch 64, K=8, against one deterministic pass at batch 64 x 8.

    python benchmarks/memory.py [--nets resnet18 resnet50] [--out FILE]

Each contestant runs in a process of its own; what counts is how far its peak rises above the memory it holds before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from common import describe_machine

import bnn
from bnn.nn.nets import make_network

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=["resnet18", "resnet50"])
    parser.add_argument("--only", nargs=2, metavar=("NET", "CONTESTANT"), help="measure one in this process")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "memory.json")
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.only:
        print(measure(*args.only))
        return
    rows = []
    for net in args.nets:
        peak = {}
        for contestant in ("deterministic", "auto", "lamda=0", "weight"):
            command = [sys.executable, __file__, "--only", net, contestant]
            peak[contestant] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append({"net": net, "batch": BATCH, "draws": DRAWS, "peak_mib": peak})
        shown = "   ".join(f"{label} {value:.0f} MiB" for label, value in peak.items())
        print(
            f"peak memory, {net}, batch {BATCH}, K={DRAWS} (deterministic: batch {BATCH * DRAWS})   {shown}", flush=True
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": describe_machine(torch.device("cpu")), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
