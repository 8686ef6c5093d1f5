"""Inputs of another kind: a named image set in the shape of the images that a network was trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn.data.dataset import Data, Part
from bnn.data.named_sets.parts import load_part

CHUNK = 1024  # images resized at once: bounds the memory


def ood(name: str, like: Data, *, first: int | None = None, download: bool = False) -> Part:
    """The test part of a named image set as out-of-distribution inputs for a network trained on `like`.

    It has the channels, the size and the scaling of `like`, and no labels. Where only training images are there, these
    are taken.

    Args:
        name: an image set of `names()`; `tiny_imagenet` is for this alone.
        like: a set of images.
        first: only the first so many.
        download: as for `load`.
    """
    shape = tuple(like.train.x.shape[1:])
    if like.train.x.dtype != torch.uint8 or len(shape) != 3:
        raise ValueError(f"{like.name} is no set of images: its inputs are {like.train.x.dtype} {shape}")
    x = _any_part(name, first, download).x
    return Part(resized(with_channels(x, shape[0]), (shape[1], shape[2])), None, like.train.prepare)


def _any_part(name: str, first: int | None, download: bool) -> Part:
    try:
        return load_part(name, "test", first=first, download=download)
    except FileNotFoundError:
        try:
            return load_part(name, "train", first=first)
        except FileNotFoundError:
            pass
        raise


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images uint8 (N, C, H, W) with another number of channels: grey is repeated, colours are averaged.

    >>> with_channels(torch.tensor([1, 2, 6], dtype=torch.uint8).reshape(1, 3, 1, 1), 1)
    tensor([[[[3]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if images.shape[1] != 1:
        images = torch.cat([part.float().mean(1, keepdim=True).round().byte() for part in images.split(CHUNK)])
    return images.repeat(1, channels, 1, 1)


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images uint8 (N, C, H, W) of another size (H, W): bilinear, smoothed first where they shrink."""
    if tuple(images.shape[2:]) == size:
        return images
    parts = (F.interpolate(part.float(), size, mode="bilinear", antialias=True) for part in images.split(CHUNK))
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])
