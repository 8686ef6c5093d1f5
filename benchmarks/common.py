"""What the benchmarks share: clocks, ratios beside their bars, and a description of where they ran."""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy
import torch

from bnn._common.timing import interleaved

RESULTS = Path(__file__).parent / "results"


def synchronise(device: torch.device) -> None:
    """Waits for a device that computes in the background."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def clock(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def medians(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, least: float = 0.0
) -> dict[str, float]:
    """Median seconds of one call of each contestant, over rounds in which they take turns, after one to warm up.

    Args:
        least: seconds that the shortest turn takes at least: every turn is as many calls as that needs, the same for
            all, so that what caches hold helps all alike. 0: every turn is one call.
    """
    calls = max(calls_per_turn(run, least) for run in contestants.values())
    times = interleaved({name: repeated(run, calls) for name, run in contestants.items()}, rounds, device=device)
    return {name: timing.median / calls for name, timing in times.items()}


def cpu_medians(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The same in seconds of the processor that this process had, however long it waited for it: for one thread."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            if turn:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def calls_per_turn(run: Callable[[], Any], least: float) -> int:
    """How many calls take `least` seconds or more, judged by the second call."""
    if least == 0:
        return 1
    run()
    return max(1, math.ceil(least / clock(run)))


def repeated(run: Callable[[], Any], calls: int) -> Callable[[], None]:
    """A function that makes so many calls."""

    def turn() -> None:
        for _ in range(calls):
            run()

    return turn


def report(title: str, ratios: Mapping[str, float], bars: Mapping[str, float]) -> None:
    """Prints ratios, and the bar of those that have one."""
    shown = []
    for label, ratio in ratios.items():
        bar = bars.get(label)
        mark = "" if bar is None else f" (bar {bar:.2f}{'' if ratio <= bar else ', MISSED'})"
        shown.append(f"{label} {ratio:.2f}{mark}")
    print(f"{title:45s} {'   '.join(shown)}", flush=True)


def chosen(names: Iterable[str], globs: list[str] | None) -> list[str]:
    """The names that match one of the globs, in their order; all without globs. Ends the run if nothing matches."""
    names = list(names)
    found = [name for name in names if globs is None or any(fnmatchcase(name, glob) for glob in globs)]
    if not found:
        sys.exit(f"no row matches {globs}; there are:\n  " + "\n  ".join(names))
    return found


def heading(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What every result begins with: where and how it was made."""
    return {
        "machine": describe_machine(device),
        "seed": args.seed,
        "rounds": args.rounds,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(result: dict[str, Any], out: Path | None, *, default: str, complete: bool) -> None:
    """Writes a result to `out`; to its place under results/ if there is no `out` and nothing was left out."""
    path = out or (RESULTS / default if complete else None)
    if path is None:
        print("a choice of rows is not written: give --out to keep it")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, threads and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": str(device),
        "name": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()
