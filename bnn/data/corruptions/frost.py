"""Textures of frost, drawn from noise: our own, in place of the photographs the original mixes in."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from .streams import Floats

SIDE = 256  # of a texture, in pixels; it repeats seamlessly
COUNT = 5
_ICE = np.array([0.72, 0.88, 1.0])  # the colour of thin ice; thick ice is white


@lru_cache(maxsize=1)
def textures() -> Floats:
    """Textures (COUNT, 3, SIDE, SIDE) of 0 to 1, the same in every process.

    An approximation: crystals are the ridges 1 - |n| of smooth noise n, bent by more noise and longer in one direction,
    at two scales; they grow on patches of ice over a dark pane. What it shares with photographs of frost is high
    contrast, thin bright branches, bare places and a blue tinge; numbers on `frost` are not to be compared with those
    of CIFAR-10-C.
    """
    bank = np.stack([_texture(default_rng([20190113, number])) for number in range(COUNT)])
    bank.setflags(write=False)
    return bank


def _texture(stream: Generator) -> Floats:
    """One texture (3, SIDE, SIDE)."""
    turn = stream.uniform(0, np.pi)
    bend = 6 * _noise(stream, 2.0, 12), 6 * _noise(stream, 2.0, 12)
    branches = _ridges(_bent(_noise(stream, 1.5, 28, turn, 3.0), *bend), 3)
    needles = _ridges(_bent(_noise(stream, 1.0, 60, turn + 1.0, 3.0), *bend), 2)
    patches = 1 / (1 + np.exp(-3 * (_noise(stream, 2.0, 10) + 0.5)))
    crystals = np.maximum(branches, 0.8 * needles)
    ice = np.clip(0.14 + patches * (0.28 + 0.7 * crystals) + 0.03 * _noise(stream, 0.0, SIDE), 0, 1)
    return np.clip(ice * (_ICE[:, None, None] + (1 - _ICE[:, None, None]) * ice), 0, 1)


def _noise(stream: Generator, slope: float, cut: float, turn: float = 0.0, stretch: float = 1.0) -> Floats:
    """Periodic Gaussian noise (SIDE, SIDE), mean 0 and sd 1, with amplitudes f^-slope up to frequency `cut`.

    Frequencies along `turn` are counted `stretch` times, so that shapes are that much longer in this direction.
    """
    frequency = np.fft.fftfreq(SIDE, 1 / SIDE)
    y, x = np.meshgrid(frequency, frequency, indexing="ij")
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    f = np.hypot(stretch * along, across)
    with np.errstate(divide="ignore"):
        amplitude = np.where(f > 0, np.maximum(f, 3.0) ** -slope * np.exp(-((f / cut) ** 2)), 0)
    noise = np.fft.ifft2(np.fft.fft2(stream.standard_normal((SIDE, SIDE))) * amplitude).real
    return np.asarray((noise - noise.mean()) / noise.std())


def _bent(field: Floats, down: Floats, right: Floats) -> Floats:
    """`field` read `down` and `right` (in pixels, to the nearest) of every place, on the torus."""
    y, x = np.indices(field.shape)
    return field[_wrapped(y + down), _wrapped(x + right)]


def _wrapped(place: Floats) -> NDArray[np.int64]:
    return np.round(place).astype(np.int64) % SIDE


def _ridges(field: Floats, power: int) -> Floats:
    """Thin lines where `field` changes sign: 1 on them, towards 0 with one sd."""
    return np.asarray(np.maximum(1 - np.abs(field), 0) ** power)
