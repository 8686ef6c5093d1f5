"""Noise: Gaussian, Poisson, salt and pepper. Each maps images (N, C, H, W) to floats of 0 to 255."""

from __future__ import annotations

import numpy as np

from .streams import Floats, Images, Streams

GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)  # sd, of a range of 1
SHOT = (500, 250, 100, 75, 50)  # photons of a white pixel
IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)  # share of values replaced


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
