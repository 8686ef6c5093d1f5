"""Inputs as pictures, each with a caption."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnn._common.extras import need
from bnn.metrics.checks import to_numpy
from bnn.plots.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 0.8  # inches of a picture on a figure, about
SIZE = 7.0  # points, of the letters of a caption


def pictures(fig_or_axes: Any, images: Sequence[Any], captions: Sequence[str]) -> list[Axes]:
    """Images with a caption below each, their pixels as squares.

    Args:
        fig_or_axes: a figure, which gets rows of axes; or as many axes as there are images.
        images: each (H, W), (H, W, 1) or (H, W, 3); integers from 0 to 255, or numbers from 0 to 1.
        captions: one for each image; long lines are folded.

    Returns:
        The axes, one for each image.
    """
    if len(images) == 0 or len(images) != len(captions):
        raise ValueError(
            f"expected at least one image and a caption for each; got {len(images)} images, {len(captions)} captions"
        )
    arrays = [_checked(i, image) for i, image in enumerate(images)]
    axes = _axes(fig_or_axes, len(arrays))
    for ax, array, caption in zip(axes, arrays, captions, strict=True):
        top = 255 if array.dtype == np.uint8 else 1
        ax.imshow(array, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        for side in ax.spines.values():
            side.set(visible=True, color=FAINT)
        letters = max(6, int(ax.bbox.width / ax.figure.dpi * 72 / (0.55 * SIZE)))
        lines = [line for part in caption.split("\n") for line in textwrap.wrap(part, letters) or [""]]
        ax.set_xlabel("\n".join(lines), fontsize=SIZE, labelpad=2)
    return axes


def _checked(i: int, image: Any) -> NDArray[Any]:
    """An image as `imshow` takes it: (H, W) or (H, W, 3), uint8 or floats in [0, 1]."""
    array = to_numpy(image)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or array.size == 0 or (array.ndim == 3 and array.shape[2] != 3):
        raise ValueError(f"image {i} must have shape (H, W), (H, W, 1) or (H, W, 3); got {array.shape}")
    if array.dtype.kind == "b":
        array = array.astype(np.float64)
    top = 255 if array.dtype.kind in "iu" else 1
    if not ((array >= 0) & (array <= top)).all():  # false for NaN
        kind = "integers from 0 to 255" if top == 255 else "numbers from 0 to 1"
        raise ValueError(
            f"image {i} of {array.dtype} must be {kind}; got {array.min():g} to {array.max():g}: rescale it"
        )
    return array.astype(np.uint8 if top == 255 else np.float64)


def _axes(fig_or_axes: Any, n: int) -> list[Axes]:
    """n axes: new ones on a figure, or those given."""
    if isinstance(fig_or_axes, need("matplotlib.figure", "plots").FigureBase):
        columns = max(1, min(n, int(fig_or_axes.bbox.width / fig_or_axes.figure.dpi / WIDTH)))
        columns = math.ceil(n / math.ceil(n / columns))  # 12 in rows of 4, not 5 + 5 + 2
        grid = fig_or_axes.subplots(math.ceil(n / columns), columns, squeeze=False).ravel()
        for ax in grid[n:]:
            ax.remove()
        return list(grid[:n])
    axes = list(np.ravel(np.asarray(fig_or_axes, dtype=object)))
    if len(axes) != n:
        raise ValueError(f"expected a figure, or axes for each of {n} images; got {len(axes)} axes")
    return axes
