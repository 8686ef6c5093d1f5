"""Randomness of a training run as a function of where it is, so that nothing random needs to be stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derived(seed: int, *place: int) -> int:
    """A seed below 2^63 for one place of a run (what, epoch, step, rank), independent of all others.

    >>> derived(0, 1, 2) == derived(0, 1, 2), derived(0, 1, 2) == derived(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence([seed % 2**64, *place]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int) -> None:
    """Seeds the global generators of torch, NumPy and Python, which transforms of a user's data set may use."""
    if torch.cuda.is_initialized() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # the same for the CPU, and a millisecond faster: it does not ask for devices that are not there
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global one is what they use)
    random.seed(seed)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Whatever is seeded or drawn inside leaves the caller's global generators as they were."""
    devices = [device] if device.type == "cuda" else []
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
