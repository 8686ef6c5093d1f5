"""Augmentation of training images: a random crop of the reflect-padded image, and a random flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augment:
    """A random window of each image after padding by reflection, flipped left to right with probability 1/2.

        y(h, w) = x(r(h + a), r(w' + b)),   a, b ~ uniform {-pad, ..., pad},   w' = w or W - 1 - w

    with r the reflection at the edge pixels, which are not repeated. Every image has its own a, b and flip. The whole
    batch is one gather: nothing is padded or copied twice.

    Args:
        pad: pixels to pad by on every side, 4 in the paper; 0: no crop.
        flip: whether to flip.

    >>> Augment()(torch.zeros(100, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([100, 3, 32, 32])
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.pad, int) or isinstance(self.pad, bool) or self.pad < 0:
            raise ValueError(f"pad must be an integer >= 0, got {self.pad!r}")
        if not isinstance(self.flip, bool):
            raise ValueError(f"flip must be true or false, got {self.flip!r}")
        if self.pad == 0 and not self.flip:
            raise ValueError("pad=0 and flip=False change nothing; leave the augmentation out instead")

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A changed copy of a batch, of the same shape, type and device.

        Args:
            x: images (N, C, H, W) of any type; uint8, as stored, is the fastest.
            generator: where random numbers come from; None: torch's own.
        """
        if x.ndim != 4:
            raise ValueError(f"images must be (N, C, H, W), got {tuple(x.shape)}; x[None] makes a batch of one")
        count, channels, height, width = x.shape
        if self.pad >= min(height, width):
            raise ValueError(
                f"pad must be smaller than the images, which are {height} x {width}, got {self.pad}; "
                f"reflection reaches pad={max(min(height, width) - 1, 0)} at most"
            )
        down, right, flipped = (draw.to(x.device) for draw in self._draws(count, generator))  # (N, 1) each
        rows = _reflected(torch.arange(height, device=x.device) + down, height)  # (N, H)
        cols = torch.arange(width, device=x.device).expand(count, width)
        cols = _reflected(torch.where(flipped, width - 1 - cols, cols) + right, width)  # (N, W)
        place = (rows[:, :, None] * width + cols[:, None, :]).reshape(count, 1, height * width)
        flat = x.reshape(count, channels, height * width)
        return flat.gather(2, place.expand_as(flat)).reshape(x.shape)

    def _draws(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """For every image, how far its window is down and right of the image, and whether it is flipped."""
        device = torch.device("cpu") if generator is None else generator.device
        offsets = torch.randint(-self.pad, self.pad + 1, (2, count, 1), generator=generator, device=device)
        flips = torch.randint(2 if self.flip else 1, (count, 1), generator=generator, device=device)
        return offsets[0], offsets[1], flips == 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `Augment(pad=..., flip=...)` reads it back.

        >>> Augment(pad=2).to_dict()
        {'kind': 'augment', 'pad': 2, 'flip': True}
        """
        return {"kind": "augment", "pad": self.pad, "flip": self.flip}


def _reflected(place: Tensor, size: int) -> Tensor:
    """Places from -(size - 1) to 2 (size - 1), reflected into 0, ..., size - 1."""
    last = size - 1
    return last - (last - place.abs()).abs()
