"""Movement: blur along a line, as ImageMagick does it, and zooming into the middle."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .streams import Floats


def blur_along(images: NDArray[np.generic], radius: int, sigma: float, degrees: Floats) -> Floats:
    """Every pixel becomes a mean over the 2 radius + 1 pixels from it on, in a direction of its image's own.

        y(p) = sum_i k_i x(p + o_i),   k_i ~ exp(-i^2 / (2 sigma^2)),   o_i = ceil(i (cos, sin) - 1/2)

    with i from 0 (one side only: this is ImageMagick's kernel, offsets and edge rule), the image going on beyond its
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
