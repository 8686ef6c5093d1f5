"""Whether data will fit, before it is read."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence

CONTAINER = pathlib.Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int | None:
    """The memory this process may use; None where nobody says."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTAINER.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def check_memory(shape: Sequence[int]) -> None:
    """An error if images (N, C, H, W) of one byte per pixel and channel take more than half of the memory."""
    needed, there = math.prod(shape), memory_bytes()
    if there is not None and needed > there / 2:
        raise MemoryError(
            f"{shape[0]} images of {shape[2]} x {shape[3]} pixels take {needed / 2**30:.3g} GiB, more than half of the "
            f"{there / 2**30:.3g} GiB of memory; give a smaller size=, such as size=64"
        )
