"""Digital: low contrast, elastic warps, coarse pixels, JPEG, saturation. Images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from bnn._common.extras import need
from bnn.data.corruptions.pixel_noise import Floats, Images, Streams

CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # factor of the distance from the mean
ELASTIC = (  # largest displacement, its smoothness, largest displacement of the corners: shares of the image's side
    (0.0, 0.0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)  # of the side
JPEG = (80, 65, 58, 50, 40)  # quality
SATURATE = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))  # factor of the saturation, added to it


def contrast(images: Images, severity: int, streams: Streams) -> Floats:
    """c (x - m) + m with m the image's mean, channel by channel."""
    x = images / 255.0
    mean = x.reshape(*x.shape[:2], -1).mean(axis=-1)[..., None, None]
    return ((x - mean) * CONTRAST[severity - 1] + mean) * 255


def elastic_transform(images: Images, severity: int, streams: Streams) -> Floats:
    """A random affine map, then a smooth random displacement of every pixel; both with linear interpolation.

    The affine map moves three corners of a square in the middle. OpenCV, which the authors use for it, rounds places to
    1/32 of a pixel; here they are exact.
    """
    ndimage = need("scipy.ndimage", extra="data")
    height, width = images.shape[2:]
    side = min(height, width)
    strength, smoothness, corners = (side * share for share in ELASTIC[severity - 1])
    moves = streams.uniform(-corners, corners, 3, 2)
    shifts = streams.uniform(-1, 1, 2, height, width)
    rows, cols = np.mgrid[:height, :width].astype(np.float64)
    x = _read(images / 255.0, *_affine(moves, rows, cols), "mirror")
    blur = (0, 0, smoothness, smoothness)
    dx, dy = strength * ndimage.gaussian_filter(shifts, blur, mode="reflect", truncate=3).swapaxes(0, 1)
    return _read(x, rows + dy, cols + dx, "reflect") * 255


def _affine(moves: Floats, rows: Floats, cols: Floats) -> tuple[Floats, Floats]:
    """Where each pixel of the result comes from, rows and columns (N, H, W), under maps that move three points.

    The points (x, y) are corners of a square of half-side min(H, W) // 3 around the middle; `moves` (N, 3, 2) takes
    them to where they end. The inverse map B solves [x', y', 1] B = (x, y) for the three.
    """
    height, width = rows.shape
    middle = np.array([width // 2, height // 2])
    half = max(1, min(height, width) // 3)
    points = middle + half * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    ends = np.concatenate([points + moves, np.ones((len(moves), 3, 1))], axis=-1)
    back = np.linalg.solve(ends, np.broadcast_to(points, (len(moves), 3, 2)))[:, :, :, None, None]
    source = back[:, 0] * cols + back[:, 1] * rows + back[:, 2]  # (N, 2, H, W)
    return source[:, 1], source[:, 0]


def _read(x: Floats, rows: Floats, cols: Floats, beyond: str) -> Floats:
    """Images (N, C, H, W) at the places (N, H, W), between pixels linearly; `beyond` the edge as SciPy names it."""
    ndimage = need("scipy.ndimage", extra="data")
    result = np.empty_like(x)
    for i, j in np.ndindex(x.shape[:2]):
        ndimage.map_coordinates(x[i, j], (rows[i], cols[i]), result[i, j], order=1, mode=beyond)
    return result


def pixelate(images: Images, severity: int, streams: Streams) -> Floats:
    """Shrunk by averaging and enlarged again, both with Pillow's box filter."""
    box = need("PIL.Image", extra="data").Resampling.BOX
    height, width = images.shape[2:]
    share = PIXELATE[severity - 1]
    small = max(1, int(width * share)), max(1, int(height * share))
    return _each(images, lambda image: image.resize(small, box).resize((width, height), box))


def jpeg_compression(images: Images, severity: int, streams: Streams) -> Floats:
    """Through a JPEG file in memory, of low quality."""
    pil = need("PIL.Image", extra="data")

    def through_file(image: Any) -> Any:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=JPEG[severity - 1])
        return pil.open(file)

    return _each(images, through_file)


def _each(images: Images, change: Any) -> Floats:
    """`change` of every image as Pillow's, RGB or grey."""
    pil = need("PIL.Image", extra="data")
    result = np.empty(images.shape)
    layout = images[:, 0] if images.shape[1] == 1 else images.transpose(0, 2, 3, 1)  # (N, H, W) or (N, H, W, 3)
    for i, image in enumerate(np.ascontiguousarray(layout)):
        changed = np.asarray(change(pil.fromarray(image)), dtype=np.float64)
        result[i] = changed if changed.ndim == 2 else changed.transpose(2, 0, 1)
    return result


def saturate(images: Images, severity: int, streams: Streams) -> Floats:
    """The saturation of HSV, s = 1 - min(r, g, b) / v, becomes clip(c s + d, 0, 1) at the same hue and value v.

    Hue is where a channel stands between the other two, so with t = (v - x) / (v - min) the result is v (1 - s t). Grey
    has no hue; as everywhere it passes for red, t = (0, 1, 1), so that the strongest two tint it.
    """
    factor, added = SATURATE[severity - 1]
    x = images / 255.0
    value, least = x.max(axis=1, keepdims=True), x.min(axis=1, keepdims=True)
    below = np.broadcast_to(np.array([0.0, 1.0, 1.0])[:, None, None], x.shape).copy()
    np.divide(value - x, value - least, out=below, where=value > least)
    saturation = np.divide(value - least, value, out=np.zeros_like(value), where=value > 0)
    return value * (1 - np.clip(factor * saturation + added, 0, 1) * below) * 255
