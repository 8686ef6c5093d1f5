"""Spatter: drops of water or mud on the lens. Images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnn._common.extras import need
from bnn.data.corruptions.blur import gaussian
from bnn.data.corruptions.pixel_noise import Floats, Images, Streams
from bnn.data.corruptions.weather import LUMA

SPATTER = (  # mean, sd and smoothness of the liquid, threshold, strength of water or smoothness of mud, mud?
    (0.62, 0.1, 0.7, 0.7, 0.5, False),
    (0.65, 0.1, 0.8, 0.7, 0.5, False),
    (0.65, 0.3, 1.0, 0.69, 0.5, False),
    (0.65, 0.1, 0.7, 0.69, 0.6, True),
    (0.65, 0.1, 0.5, 0.68, 0.6, True),
)
WATER, MUD = np.array([175.0, 238.0, 238.0]), np.array([63.0, 42.0, 20.0])  # pale turquoise, brown
OPAQUE = 0.8  # mud below this is none
WEAK, STRONG = 50, 150  # gradients of an edge, of one that stands alone
FAR = 20  # pixels; distances from an edge beyond it count as this one
SLOPE = np.array([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])  # light from above left

SOBEL = np.array([[-1.0, -2.0, -1.0], [0.0, 0.0, 0.0], [1.0, 2.0, 1.0]])  # downwards

Masks = NDArray[np.bool_]


def spatter(images: Images, severity: int, streams: Streams) -> Floats:
    """Smooth noise above a threshold is liquid: drops of water (`relief`) are added, mud covers.

        water: x + strength m / max(m) turquoise          mud: (1 - m) x + m brown

    On grey images the colours are their luma. Distances from edges are exact; OpenCV, which the authors use, has them
    to a few per cent.
    """
    mean, sd, smooth, threshold, last, mud = SPATTER[severity - 1]
    liquid = gaussian(mean + sd * streams.normal(1, *images.shape[2:]), smooth)
    liquid[liquid < threshold] = 0
    colour = (MUD if mud else WATER)[:, None, None]
    if images.shape[1] == 1:
        colour = np.einsum("c,chw->hw", LUMA, colour)[None]
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float64), last)
        cover[cover < OPAQUE] = 0
        return (1 - cover) * images + cover * colour
    drops = np.minimum(np.floor(liquid * 255), 255)  # stored in 8 bits, as the authors do
    shine = drops * relief(drops[:, 0])[:, None]
    brightest = shine.max(axis=(1, 2, 3), keepdims=True)
    return images + last * colour * np.divide(shine, brightest, out=shine, where=brightest > 0)


def relief(drops: Floats) -> Floats:
    """How drops (N, H, W) of 0 to 255 reflect the light: their distance from the nearest edge, lit from one side.

    The distance is evened out to all of 0 to 255 (`equalised`), and blurred before and after `SLOPE`; every step is a
    whole number.
    """
    ndimage = need("scipy.ndimage", extra="data")
    box = (1, 3, 3)
    depth = np.floor(ndimage.uniform_filter(distance(edges(drops)), box, mode="mirror") + 1e-9)
    lit = np.clip(ndimage.correlate(equalised(depth), SLOPE[None], mode="mirror"), 0, 255)
    return np.asarray(np.round(ndimage.uniform_filter(lit, box, mode="mirror")))


def distance(edge: Masks) -> Floats:
    """Of every pixel (N, H, W) from the nearest edge of its image, `FAR` at most."""
    if not edge.any():
        return np.full(edge.shape, float(FAR))
    ndimage = need("scipy.ndimage", extra="data")
    apart = (2.0 * FAR, 1.0, 1.0)  # edges of other images are too far to count
    return np.asarray(np.minimum(ndimage.distance_transform_edt(~edge, sampling=apart), FAR))


def edges(x: Floats) -> Masks:
    """Canny's edges of (N, H, W): gradients (Sobel, |dx| + |dy|) that are largest across the edge, above `WEAK`, and
    connected with one above `STRONG`."""
    ndimage = need("scipy.ndimage", extra="data")
    dy, dx = (ndimage.correlate(x, kernel[None], mode="nearest") for kernel in (SOBEL, SOBEL.T))
    size = np.abs(dx) + np.abs(dy)
    found = _ridge(size, dx, dy) & (size > WEAK)
    within = np.zeros((3, 3, 3), dtype=bool)
    within[1] = True  # neighbours of the same image
    names, count = ndimage.label(found, within)
    kept = np.zeros(count + 1, dtype=bool)
    kept[names[found & (size > STRONG)]] = True
    return kept[names]


def _ridge(size: Floats, dx: Floats, dy: Floats) -> Masks:
    """Where a gradient is no smaller than its two neighbours across the edge, of eight directions the nearest one."""
    flat, steep = np.abs(dy) < np.tan(np.pi / 8) * np.abs(dx), np.abs(dy) > np.tan(3 * np.pi / 8) * np.abs(dx)
    rising = ~flat & ~steep & (dx * dy >= 0)
    falling = ~flat & ~steep & ~rising
    padded = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    height, width = size.shape[1:]

    def at(down: int, right: int) -> Floats:
        return padded[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    return (
        (flat & (size > at(0, -1)) & (size >= at(0, 1)))
        | (steep & (size > at(-1, 0)) & (size >= at(1, 0)))
        | (rising & (size > at(-1, -1)) & (size > at(1, 1)))
        | (falling & (size > at(-1, 1)) & (size > at(1, -1)))
    )


def equalised(x: Floats) -> Floats:
    """Whole numbers from 0 to `FAR` (N, H, W) as their rank: 255 (share of pixels <= x), the lowest value at 0.

    An image of one value stays as it is.
    """
    count, pixels = len(x), x[0].size if len(x) else 0
    values = x.astype(np.int64)
    places = np.arange(count)[:, None, None] * (FAR + 1) + values
    number = np.bincount(places.ravel(), minlength=count * (FAR + 1)).reshape(count, FAR + 1)
    lowest = number[np.arange(count), (number > 0).argmax(axis=1)][:, None]  # how many have the lowest value
    above = number.cumsum(axis=1) - lowest
    rank = np.round(255 * above / np.maximum(pixels - lowest, 1))
    rank = np.where(lowest == pixels, np.arange(FAR + 1), rank)
    return np.take_along_axis(rank, values.reshape(count, -1), axis=1).reshape(x.shape)
