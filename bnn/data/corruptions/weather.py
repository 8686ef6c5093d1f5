"""Weather: snow, frost, fog, bright light. Images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from bnn.data.corruptions.blur import blur_along, zoomed
from bnn.data.corruptions.pixel_noise import Floats, Images, Streams

SNOW = (  # mean and sd of the flakes, zoom, threshold, radius and sd of their movement, share of the image kept
    (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # weights of the image and of the frost
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # thickness, smoothness
BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added to the value
LUMA = np.array([0.299, 0.587, 0.114])
SIDE = 256  # of a texture of frost, in pixels; it repeats seamlessly
COUNT = 5  # of these textures
_ICE = np.array([0.72, 0.88, 1.0])  # the colour of thin ice; thick ice is white


def snow(images: Images, severity: int, streams: Streams) -> Floats:
    """A paler image with flakes: noise, enlarged, thresholded, blurred along a line, added as it is and upside down.

    k x + (1 - k) max(x, 1.5 grey(x) + 1/2) + s + rotated(s)
    """
    mean, sd, zoom, threshold, radius, sigma, kept = SNOW[severity - 1]
    x = images / 255.0
    flakes = zoomed(mean + sd * streams.normal(1, *images.shape[2:]), zoom)
    flakes[flakes < threshold] = 0
    flakes = np.floor(np.clip(flakes, 0, 1) * 255)  # stored in 8 bits, as the authors do
    flakes = blur_along(flakes, int(radius), sigma, streams.uniform(-135, -45)) / 255
    pale = kept * x + (1 - kept) * np.maximum(x, _grey(x) * 1.5 + 0.5)
    return (pale + flakes + flakes[..., ::-1, ::-1]) * 255


def frost(images: Images, severity: int, streams: Streams) -> Floats:
    """a x + b f with f a random piece of a random texture of frost: not the original's photographs, see `textures`."""
    own, ice = FROST[severity - 1]
    bank = textures()  # (T, 3, S, S), periodic
    side = bank.shape[-1]
    draws = streams.uniform(0, 1, 3)
    which = (draws[:, 0] * len(bank)).astype(np.int64)
    rows = ((draws[:, 1, None] * side).astype(np.int64) + np.arange(images.shape[2])) % side  # (N, H)
    cols = ((draws[:, 2, None] * side).astype(np.int64) + np.arange(images.shape[3])) % side
    pieces = bank[which[:, None, None], :, rows[:, :, None], cols[:, None, :]].transpose(0, 3, 1, 2)
    return own * images + ice * (pieces if images.shape[1] == 3 else _grey(pieces)) * 255


def fog(images: Images, severity: int, streams: Streams) -> Floats:
    """(x + c f) m / (m + c) with f a fractal cloud from 0 to 1 and m the image's brightest value.

    The cloud's side is the image's, rounded up to a power of two.
    """
    thickness, smoothness = FOG[severity - 1]
    x = images / 255.0
    height, width = images.shape[2:]
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    cloud = plasma(streams, side, smoothness)[:, None, :height, :width]
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + thickness * cloud) * brightest / (brightest + thickness) * 255


def brightness(images: Images, severity: int, streams: Streams) -> Floats:
    """The value of HSV, v = max(r, g, b), becomes min(v + c, 1) at the same hue and saturation.

    At fixed hue and saturation a colour is in proportion to its value, and black is grey.
    """
    x = images / 255.0
    value = x.max(axis=1, keepdims=True)
    colour = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return colour * np.minimum(value + BRIGHTNESS[severity - 1], 1) * 255


def _grey(x: Floats) -> Floats:
    """Luma (N, 1, H, W) of colours (N, 3, H, W); grey images are theirs."""
    return x if x.shape[1] == 1 else np.einsum("c,nchw->nhw", LUMA, x)[:, None]


def plasma(streams: Streams, side: int, decay: float) -> Floats:
    """Clouds (N, side, side) from 0 to 1, `side` a power of two; larger `decay`, smoother clouds.

    From one corner at 0, a grid is halved until it is full. New points are the mean of four neighbours plus a number
    uniform in [-w^2, w^2], where w starts at 100 and is divided by `decay` with every halving:

        squares: the four corners of a cell              diamonds: the two ends of an edge, the middles beside it
    """
    height = streams.uniform(0, 0, side, side)
    step, wobble = side, 100.0
    while step >= 2:
        half = step // 2

        def near(total: Floats, wobble: float = wobble) -> Floats:
            return total / 4 + streams.uniform(-(wobble**2), wobble**2, *total.shape[1:])

        corners = height[:, ::step, ::step]
        edges = corners + np.roll(corners, -1, axis=1)
        middles = near(edges + np.roll(edges, -1, axis=2))
        height[:, half::step, half::step] = middles
        across = middles + np.roll(middles, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        height[:, ::step, half::step] = near(across)
        down = middles + np.roll(middles, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        height[:, half::step, ::step] = near(down)
        step, wobble = half, wobble / decay
    height -= height.min(axis=(1, 2), keepdims=True)
    return height / height.max(axis=(1, 2), keepdims=True)


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
