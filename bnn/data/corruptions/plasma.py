"""Clouds by midpoint displacement (diamond-square) on a torus."""

from __future__ import annotations

import numpy as np

from .streams import Floats, Streams


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
