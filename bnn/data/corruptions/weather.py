"""Weather: snow, frost, fog, bright light. Images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

import numpy as np

from .frost import textures
from .motion import blur_along, zoomed
from .plasma import plasma
from .streams import Floats, Images, Streams

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
