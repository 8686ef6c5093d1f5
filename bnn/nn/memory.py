"""Whether a posterior fits in memory, asked before anything is allocated."""

from __future__ import annotations

import os
import pathlib

import torch
from torch import Tensor


def covariance_bytes(n: int, like: Tensor) -> int:
    """What an n x n covariance of the type of `like` takes in training: itself, its gradient, Adam's two moments."""
    return 4 * n * n * like.element_size()


def refuse_covariance(n: int, like: Tensor, family: str) -> None:
    """Raises ValueError, with its size, if an n x n covariance does not fit in the memory of `like`'s device."""
    what = f"{family} over {n:,} weights needs a {n:,} x {n:,} covariance"
    refuse_beyond_memory(covariance_bytes(n, like), like.device, what)


def refuse_beyond_memory(needed: int, device: torch.device, what: str) -> None:
    """Raises ValueError if `what` needs more bytes, in training, than `device` has in all."""
    available = total_memory(device)
    if available is not None and needed > available:
        raise ValueError(
            f"{what}: {needed / 2**30:,.1f} GiB with gradient and Adam's moments, "
            f"of {available / 2**30:,.1f} GiB in all; use a smaller posterior ('ffg', 'inducing'), "
            "or convert fewer or smaller layers"
        )


def total_memory(device: torch.device) -> int | None:
    """The memory of `device` in bytes, or what a container may use of it; None where it cannot be told."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(physical, int(text)) if text.isdecimal() else physical
