"""Blur: even, out of focus, behind frosted glass, moving, approaching. Images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bnn._common.extras import need
from bnn.data.corruptions.pixel_noise import Floats, Images, Streams

DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))  # radius of the disk, sd of its soft edge
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # sd of the blur before and after, rounds of shuffling
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, sd
GAUSSIAN_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # sd in pixels
ZOOM = (1.06, 1.11, 1.16, 1.21, 1.26)  # where the factors 1, 1.01, ... end


def defocus_blur(images: Images, severity: int, streams: Streams) -> Floats:
    """Convolution with a disk whose edge is softened by a 3 x 3 Gaussian; images are mirrored at the edge.

    The authors' kernel of 17 x 17 is zero outside of its inner 5 x 5; this is that part.
    """
    ndimage = need("scipy.ndimage", extra="data")
    kernel = disk(*DEFOCUS[severity - 1])[None, None]
    return np.asarray(ndimage.correlate(images.astype(np.float64), kernel, mode="mirror"))


def disk(radius: float, sigma: float) -> Floats:
    """The kernel (5, 5) of a disk of radius < 2, blurred by a 3 x 3 Gaussian of sd `sigma`; its sum is 1."""
    ndimage = need("scipy.ndimage", extra="data")
    y, x = np.mgrid[-2:3, -2:3]
    inside = (x**2 + y**2 <= radius**2).astype(np.float64)
    edge = np.exp(-0.5 * (np.arange(-1, 2) / sigma) ** 2)
    edge /= edge.sum()
    return np.asarray(ndimage.correlate(inside / inside.sum(), np.outer(edge, edge), mode="constant"))


def glass_blur(images: Images, severity: int, streams: Streams) -> Floats:
    """Blur, shuffle pixels by up to one, blur again.

    The authors walk from the last pixel to the first and mean to swap each with one of the four at rows {0, -1} and
    columns {0, -1} from it. What their exchange of NumPy views does, and so what CIFAR-10-C shows, is to copy that
    pixel over it. A pixel so read has not been written yet, hence a round is one gather:

        x(h, w) <- x(h + dy, w + dx),   dy, dx ~ uniform {-1, 0},   2 <= h < H, 2 <= w < W
    """
    sigma, rounds = GLASS[severity - 1]
    count, _, height, width = images.shape
    x = np.floor(gaussian(images / 255.0, sigma) * 255)
    if min(height, width) > 2:
        every = np.arange(count)[:, None, None]
        rows, cols = np.mgrid[2:height, 2:width]
        for _ in range(rounds):
            dx, dy = streams.integers(-1, 1, 2, height - 2, width - 2).swapaxes(0, 1)
            taken = x[every, :, rows + dy, cols + dx]  # (N, H - 2, W - 2, C)
            x[:, :, 2:, 2:] = taken.transpose(0, 3, 1, 2)
    return gaussian(x / 255.0, sigma) * 255


def gaussian_blur(images: Images, severity: int, streams: Streams) -> Floats:
    """Convolution with a Gaussian (`gaussian`)."""
    return gaussian(images / 255.0, GAUSSIAN_BLUR[severity - 1]) * 255


def gaussian(x: Floats, sigma: float) -> Floats:
    """Each image and channel blurred by a Gaussian, cut off at 4 sd, with the edge pixels repeated beyond the edge."""
    ndimage = need("scipy.ndimage", extra="data")
    return np.asarray(ndimage.gaussian_filter(x, (0, 0, sigma, sigma), mode="nearest", truncate=4.0))


def motion_blur(images: Images, severity: int, streams: Streams) -> Floats:
    """Blur along a line (`blur_along`) at an angle between -45 and 45 degrees."""
    radius, sigma = MOTION[severity - 1]
    return blur_along(images, radius, sigma, streams.uniform(-45, 45))


def zoom_blur(images: Images, severity: int, streams: Streams) -> Floats:
    """The mean of the image and of enlargements of its middle by 1, 1.01, ... (in float64; the authors' is float32).

    Where rounding puts the end of that range inside or outside of it is NumPy's doing, there as here.
    """
    factors = np.arange(1, ZOOM[severity - 1], 0.01)
    x = images.astype(np.float64)
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def blur_along(images: NDArray[np.generic], radius: int, sigma: float, degrees: Floats) -> Floats:
    """Every pixel becomes a mean over the 2 radius + 1 pixels from it on, in a direction of its image's own.

        y(p) = sum_i k_i x(p + o_i),   k_i ~ exp(-i^2 / (2 sigma^2)),   o_i = ceil(i (cos, sin) - 1/2)

    with i from 0 (one side only: this is ImageMagick's kernel, offsets and edge rule), the image continued beyond its
    edge as the pixel there, and the mean rounded to a whole number as a PNG stores it.

    Args:
        images: (N, C, H, W), of 0 to 255.
        degrees: angles (N,), from the direction of a row, turning downwards.
    """
    steps = np.arange(2 * radius + 1)
    kernel = np.exp(-0.5 * (steps / sigma) ** 2)
    kernel /= kernel.sum()
    turn = np.deg2rad(degrees)[:, None]
    rows = np.ceil(steps * np.sin(turn) - 0.5).astype(np.int64)  # (N, taps)
    cols = np.ceil(steps * np.cos(turn) - 0.5).astype(np.int64)
    reach = 2 * radius
    padded = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    shifted = sliding_window_view(padded, images.shape[2:], axis=(2, 3))  # (N, C, shifts, shifts, H, W)
    every = np.arange(len(images))
    total = np.zeros(images.shape)
    for i in steps:
        total += kernel[i] * shifted[every, :, reach + rows[:, i], reach + cols[:, i]]
    return np.floor(total + 0.5)


def zoomed(images: Floats, factor: float) -> Floats:
    """The middle of each image (N, C, H, W), enlarged by `factor` with linear interpolation to the image's size."""
    rows, cols = (_enlarging(size, factor) for size in images.shape[2:])
    return rows @ images @ cols.T


def _enlarging(size: int, factor: float) -> Floats:
    """The matrix (size, size) of zooming in along one axis.

    The middle ceil(size / factor) pixels are spread over round(that * factor), first on first and last on last, and of
    these the middle `size` are kept.
    """
    kept = int(np.ceil(size / factor))
    spread = round(kept * factor)
    places = (np.arange(size) + (spread - size) // 2) * ((kept - 1) / max(spread - 1, 1))
    below = np.minimum(np.floor(places).astype(np.int64), kept - 1)
    above = np.minimum(below + 1, kept - 1)
    first = (size - kept) // 2
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size), first + below), 1 - (places - below))
    np.add.at(matrix, (np.arange(size), first + above), places - below)
    return matrix
