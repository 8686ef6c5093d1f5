"""`corrupt`: images of any batch, one of nineteen kinds, five severities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bnn._common.text import nearest
from bnn.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from bnn.data.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from bnn.data.corruptions.pixel_noise import (
    Floats,
    Images,
    Streams,
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from bnn.data.corruptions.spatter import spatter
from bnn.data.corruptions.weather import brightness, fog, frost, snow

Corruption = Callable[[Images, int, Streams], Floats]

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
CORRUPTIONS = tuple(kind for kinds in GROUPS.values() for kind in kinds)
OF_COLOUR = ("saturate",)  # kinds that grey images cannot have
_FUNCTIONS: dict[str, Corruption] = {
    function.__name__: function
    for function in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
        *(speckle_noise, gaussian_blur, spatter, saturate),
    )
}
_CHUNK = 2**20  # pixels worked on at a time: the working arrays of 1024 images of CIFAR are some 100 MB


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0, *, start: int = 0) -> Tensor:
    """Corrupted copies of images, as in CIFAR-10-C.

    Image i of the result depends on image i, (seed, kind, severity) and start + i alone, never on the batch it is in:
    corrupt(x)[a:b] = corrupt(x[a:b], start=a). Random numbers are NumPy's, equal wherever its version is.

    Lengths in pixels are those the authors chose for 32 x 32, whatever the size of the images; what they gave relative
    to the image (zoom_blur, fog, elastic_transform, pixelate) scales with it. Grey images are corrupted as they are,
    with one channel of noise; `saturate` has nothing to change in them and refuses.

    Args:
        images: uint8 (N, C, H, W), C = 1 (grey) or 3 (RGB).
        kind: one of `CORRUPTIONS`.
        severity: 1 (mild) to 5.
        seed: of the random numbers, an integer >= 0.
        start: the place of the first image in the whole set.

    Returns:
        uint8 (N, C, H, W) on the CPU.

    >>> corrupt(torch.full((2, 3, 8, 8), 100, dtype=torch.uint8), "brightness", 5)[0, :, 0, 0]
    tensor([176, 176, 176], dtype=torch.uint8)
    """
    _check(images, kind, severity, seed, start)
    array = images.detach().cpu().contiguous().numpy()
    result = np.empty_like(array)
    height, width = array.shape[2:]
    step = max(1, _CHUNK // (height * width))
    for first in range(0, len(array), step):
        part = array[first : first + step]
        streams = Streams(seed, kind, severity, start + first, len(part))
        # cut off, not rounded, as the authors' conversion to uint8 does
        result[first : first + step] = np.clip(_FUNCTIONS[kind](part, severity, streams), 0, 255).astype(np.uint8)
    return torch.from_numpy(result)


def _check(images: Tensor, kind: str, severity: int, seed: int, start: int) -> None:
    if kind not in _FUNCTIONS:
        raise ValueError(
            f"unknown corruption {kind!r}{nearest(kind, CORRUPTIONS)}; expected one of {list(CORRUPTIONS)}"
        )
    if not isinstance(severity, int | np.integer) or isinstance(severity, bool) or not 1 <= severity <= 5:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity!r}")
    for name, value in (("seed", seed), ("start", start)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} must be an integer >= 0, got {value!r}")
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a uint8 tensor (N, C, H, W), got a {type(images).__name__}")
    if images.dtype != torch.uint8:
        raise TypeError(
            f"images must be uint8 from 0 to 255, got {images.dtype}; corrupt them as stored, before they are scaled"
        )
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ValueError(
            f"images must be (N, C, H, W) with 1 or 3 channels, got {tuple(images.shape)}; "
            "x[:, None] adds the channel to grey images, x.permute(0, 3, 1, 2) moves one that comes last"
        )
    if images.shape[1] == 1 and kind in OF_COLOUR:
        raise ValueError(f"{kind} changes colours, and these images are grey: leave it out")
