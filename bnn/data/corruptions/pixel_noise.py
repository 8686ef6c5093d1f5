"""Noise, Gaussian, Poisson, salt and pepper, speckle; and the stream of random numbers that every image has."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # (N, C, H, W)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)  # sd, of a range of 1
SHOT = (500, 250, 100, 75, 50)  # photons of a white pixel
IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)  # share of values replaced

SPECKLE = (0.06, 0.1, 0.12, 0.16, 0.2)  # sd, of the pixel's value


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


def gaussian_noise(images: Images, severity: int, streams: Streams) -> Floats:
    """x + sd n, n ~ N(0, 1) for every pixel and channel."""
    return images + 255 * GAUSSIAN[severity - 1] * streams.normal(*images.shape[1:])


def shot_noise(images: Images, severity: int, streams: Streams) -> Floats:
    """Poisson(c x) / c: mean x and variance x / c, of a range of 1."""
    photons = SHOT[severity - 1]
    return streams.poisson(images / 255 * photons) / photons * 255


def impulse_noise(images: Images, severity: int, streams: Streams) -> Floats:
    """A share of the values, channel by channel, becomes 0 or 255 with equal chance."""
    share = IMPULSE[severity - 1]
    u = streams.uniform(0, 1, *images.shape[1:])  # below share / 2: black; below share: white
    return np.where(u < share, np.where(u < share / 2, 0.0, 255.0), images)


def speckle_noise(images: Images, severity: int, streams: Streams) -> Floats:
    """x + sd x n, n ~ N(0, 1) for every pixel and channel: noise in proportion to the light."""
    return images * (1 + SPECKLE[severity - 1] * streams.normal(*images.shape[1:]))
