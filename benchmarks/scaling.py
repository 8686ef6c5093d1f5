"""How the cost of K draws grows with K, M, the batch and the width, beside the law it should follow.

    python benchmarks/scaling.py [--rounds 7] [--device cpu] [--plot docs/images/scaling.png]

The layer is a Linear of width d with M x M inducing weights. Law of one call, in multiplies: the plain layer N d^2 per
draw; the paper's way 2 M d^2 + N d^2 per draw, and d^2 normals; without W, K N M (2 d + M) in all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, medians
from contestants import LAMDA, converted, no_grad_draws, papers_way, passes
from torch import nn

BASE = {"K": 8, "M": 32, "batch": 16, "width": 1024}
SWEEPS = {
    "K": (1, 2, 4, 8, 16, 32),
    "M": (8, 16, 32, 64, 128, 256),
    "batch": (1, 4, 16, 64, 256),
    "width": (128, 256, 512, 1024, 2048),
}


def law(way: str, k: int, m: int, n: int, d: int) -> float:
    """Multiplies, with a normal counted as 300."""
    if way == "deterministic":
        return k * n * d * d
    if way == "paper":
        return k * (300 * d * d + 2 * m * d * d + n * d * d)
    noise = 0 if way == "lamda=0" else 300 * k * n * d
    return noise + k * n * m * (2 * d + m)


def measure(setting: dict[str, int], rounds: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of each contestant."""
    k, m, n, d = (setting[name] for name in ("K", "M", "batch", "width"))
    plain = nn.Linear(d, d).to(device).eval()
    auto, point = converted(plain, m=m, **LAMDA), converted(plain, m=m, max_lamda=0)
    weight = converted(plain, m=m, sampling="weight", **LAMDA)
    x = torch.randn(n, d, device=device)
    contestants: dict[str, Callable[[], Any]] = {
        "deterministic": lambda: passes(plain, x, k),
        "paper": lambda: papers_way(weight, x, k),
        "auto": lambda: no_grad_draws(auto, x, k),
        "lamda=0": lambda: no_grad_draws(point, x, k),
    }
    return {name: 1e3 * value for name, value in medians(contestants, rounds, device).items()}


def plot(result: dict[str, Any], path: Path) -> None:
    """One panel per sweep: measured times, and the law through the point in the middle."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"deterministic": "#555555", "paper": "#c0392b", "auto": "#1f6fb2", "lamda=0": "#2e8b57"}
    figure, panels = plt.subplots(1, 4, figsize=(15, 3.8), layout="constrained", sharey=True)
    for panel, (name, points) in zip(panels, result["sweeps"].items(), strict=True):
        values = [point["setting"][name] for point in points]
        for way, colour in colours.items():
            times = [point["ms"][way] for point in points]
            laws = [law(way, *(point["setting"][key] for key in ("K", "M", "batch", "width"))) for point in points]
            scale = times[-1] / laws[-1]
            panel.plot(values, times, "o-", color=colour, label=way, markersize=4)
            panel.plot(values, [scale * value for value in laws], ":", color=colour, linewidth=1)
        panel.set(xscale="log", yscale="log", xlabel=name, xticks=values, xticklabels=values)
        panel.minorticks_off()
        rest = ", ".join(f"{key}={value}" for key, value in BASE.items() if key != name)
        panel.set_title(rest, fontsize=9)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds for K draws")
    panels[-1].plot([], [], ":", color="black", label="law (dotted)")
    panels[-1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    root = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=root / "results" / "scaling.json")
    parser.add_argument("--plot", type=Path, default=root.parent / "docs" / "images" / "scaling.png")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = torch.device(args.device)
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for name, values in SWEEPS.items():
        sweeps[name] = []
        for value in values:
            setting = BASE | {name: value}
            ms = measure(setting, args.rounds, device)
            sweeps[name].append({"setting": setting, "ms": ms})
            print(f"{name}={value:5d}  " + "   ".join(f"{way} {time:.2f} ms" for way, time in ms.items()), flush=True)
    result = {"machine": describe_machine(device), "rounds": args.rounds, "sweeps": sweeps}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    plot(result, args.plot)


if __name__ == "__main__":
    main()
