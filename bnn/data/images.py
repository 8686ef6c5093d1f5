"""Images as a network takes them: pixels scaled per channel, and in training cropped and flipped at random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bnn._common.records import stored_fields, stored_number

CHUNK = 4096  # images whose sums are taken at once: bounds the memory


@dataclass(frozen=True)
class ImageScaling:
    """Scales the pixels of every channel c: (x / range - mean_c) / sd_c, as one multiplication and one addition.

    Args:
        mean, sd: one number per channel, as fractions of `range`; those of the training part.
        range: the value of a white pixel.

    >>> ImageScaling(mean=(0.5,), sd=(0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    kind: ClassVar[str] = "images"

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    range: float = 255.0

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.sd):
            raise ValueError(f"mean and sd need one number per channel, got {len(self.mean)} and {len(self.sd)}")
        if not all(math.isfinite(one) for one in self.mean):
            raise ValueError(f"mean must be finite, got {self.mean}")
        if not all(math.isfinite(one) and one > 0 for one in (*self.sd, self.range)):
            raise ValueError(f"sd and range must be finite and above 0, got {self.sd} and {self.range}")

    @classmethod
    def learned(cls, images: Tensor, range: float = 255.0) -> ImageScaling:
        """Means and sds of the pixels of `images` (N, C, H, W), per channel; an sd is at least one grey level.

        >>> ImageScaling.learned(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
        ImageScaling(mean=(0.5,), sd=(0.5,), range=255.0)
        """
        if images.ndim != 4 or images.numel() == 0:
            raise ValueError(f"expected images (N, C, H, W), got shape {tuple(images.shape)}")
        total = torch.zeros(2, images.shape[1], dtype=torch.double, device="cpu")
        for chunk in images.split(CHUNK):
            values = chunk.to(torch.float32).movedim(1, 0).flatten(1)  # (C, N H W)
            total += torch.stack([values.sum(1, dtype=torch.double), values.square().sum(1, dtype=torch.double)]).cpu()
        mean, square = total / (images.numel() // images.shape[1])
        sd = (square - mean.square()).clamp(min=1.0).sqrt()
        return cls(tuple((mean / range).tolist()), tuple((sd / range).tolist()), range)

    def __call__(self, raw: Any) -> Tensor:
        """Images uint8 (N, C, H, W), a tensor or an array, as float32 (N, C, H, W)."""
        images = torch.from_numpy(np.ascontiguousarray(raw)) if isinstance(raw, np.ndarray) else raw
        self._check(images)
        shape = (1, -1, 1, 1)
        factor = torch.tensor([1 / (self.range * sd) for sd in self.sd], device=images.device).reshape(shape)
        offset = torch.tensor([-mean / sd for mean, sd in zip(self.mean, self.sd, strict=True)], device=images.device)
        return images.to(torch.float32).mul_(factor).add_(offset.reshape(shape))  # three times as fast as addcmul

    def _check(self, images: Any) -> None:
        if not isinstance(images, Tensor) or images.dtype != torch.uint8:
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(f"images must be a tensor or an array of uint8, 0 to {self.range:g}, got {kind}")
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            last = images.ndim == 4 and images.shape[3] == len(self.mean)
            hint = "; channels come before rows and columns: use x.permute(0, 3, 1, 2)" if last else ""
            raise ValueError(f"images must have the shape (N, {len(self.mean)}, H, W), got {tuple(images.shape)}{hint}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "mean": list(self.mean), "sd": list(self.sd), "range": self.range}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ImageScaling:
        """What `to_dict` gave."""
        fields = stored_fields(stored, "scaling of images", mean=list, sd=list, range=(int, float))
        mean = tuple(stored_number(one, "mean") for one in fields["mean"])
        sd = tuple(stored_number(one, "sd", positive=True) for one in fields["sd"])
        return cls(mean, sd, stored_number(fields["range"], "range", positive=True))


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
