"""What the benchmarks share: clocks and a description of where they ran."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch


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
