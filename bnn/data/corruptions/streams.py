"""A random stream per image, so that an image's corruption does not depend on its batch."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # (N, C, H, W)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Streams:
    """Streams for `count` images from place `start` on; image i's is seeded by (seed, kind, severity, start + i).

    Every method draws an array of the given shape per image and stacks them: (N, *shape).

    >>> streams = Streams(seed=0, kind="fog", severity=1, start=0, count=3)
    >>> same = Streams(seed=0, kind="fog", severity=1, start=2, count=1)
    >>> bool((streams.uniform(0, 1, 4)[2] == same.uniform(0, 1, 4)[0]).all())
    True
    """

    def __init__(self, seed: int, kind: str, severity: int, start: int, count: int) -> None:
        name = zlib.crc32(kind.encode())
        places = range(start, start + count)
        self._streams = [default_rng(SeedSequence([int(seed), name, int(severity), place])) for place in places]

    def normal(self, *shape: int) -> Floats:
        """Standard normal numbers."""
        return self._stack(lambda stream: stream.standard_normal(shape), shape)

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Numbers uniform in [low, high)."""
        return self._stack(lambda stream: stream.uniform(low, high, shape), shape)

    def integers(self, low: int, high: int, *shape: int) -> Integers:
        """Integers uniform in low, ..., high - 1."""
        return self._stack(lambda stream: stream.integers(low, high, shape), shape).astype(np.int64)

    def poisson(self, rate: Floats) -> Floats:
        """Poisson counts of rate (N, ...)."""
        counts = np.empty_like(rate)
        for i, stream in enumerate(self._streams):
            counts[i] = stream.poisson(rate[i])
        return counts

    def _stack(self, draw: Callable[[Generator], NDArray[np.generic]], shape: tuple[int, ...]) -> Floats:
        stacked = np.empty((len(self._streams), *shape))
        for i, stream in enumerate(self._streams):
            stacked[i] = draw(stream)
        return stacked
