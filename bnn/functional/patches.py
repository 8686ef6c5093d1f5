"""The rows of a convolution: inner products of patches without forming the patches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Pad = tuple[int, int]  # before and after


def out_sizes(
    space: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: Sequence[Pad]
) -> list[int]:
    """How many patches there are along each dimension of space."""
    geometry = zip(space, kernel, stride, dilation, padding, strict=True)
    return [(size + sum(pad) - d * (k - 1) - 1) // s + 1 for size, k, s, d, pad in geometry]


def by_pixels(space: Sequence[int], out: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether `patch_gram` multiplies pixels, or patches, where strides leave few of them."""
    return math.prod(space) ** 2 <= math.prod(out) ** 2 * math.prod(kernel)


def gram_multiplies(channels: int, space: Sequence[int], out: Sequence[int], kernel: Sequence[int]) -> int:
    """Multiplies that `patch_gram` takes per input."""
    pixels, patches = math.prod(space), math.prod(out)
    return channels * (pixels**2 if by_pixels(space, out, kernel) else patches**2 * math.prod(kernel))


def patch_gram(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[Pad],
    less: Tensor | None = None,
) -> Tensor:
    """X X^T (B, p, p), the inner products of all pairs of patches of x (B, channels, *space), padded with zeros.

    Patches overlap, so most of their products are shared: the pixels' Gram matrix (B, *space, *space), summed along its
    diagonals over the taps of the kernel, one dimension of space after the other. Where strides leave few patches, the
    patches themselves are multiplied.

    Args:
        less: t (B, *out[:-1], last size, M), where pixels are multiplied: what the same sum along the last dimension
            makes of t t^T is taken off, which costs no sum of its own.
    """
    space, out = x.shape[2:], out_sizes(x.shape[2:], kernel, stride, dilation, padding)
    if not by_pixels(space, out, kernel):
        rows = patches(x, kernel, stride, dilation, padding)
        return rows @ rows.mT
    pixels = x.flatten(2).mT  # (B, pixels, channels)
    gram = (pixels @ pixels.mT).reshape(len(x), *space, *space)
    for i, size in enumerate(out):
        if i == len(out) - 1 and less is not None:
            t = less.flatten(1, -2)
            gram = torch.baddbmm(gram.reshape(len(x), t.shape[1], t.shape[1]), t, t.mT, alpha=-1).reshape(gram.shape)
        if (kernel[i], stride[i], padding[i]) != (1, 1, (0, 0)):
            gram = _sum_taps(gram, 1 + i, 1 + len(space) + i, kernel[i], stride[i], dilation[i], padding[i][0], size)
    return gram.reshape(len(x), math.prod(out), math.prod(out))


def _sum_taps(gram: Tensor, left: int, right: int, taps: int, stride: int, dilation: int, pad: int, out: int) -> Tensor:
    """Sums `gram` over equal offsets in its dimensions `left` and `right`; what lies in the padding is 0."""
    shape, size = list(gram.shape), gram.shape[left]
    shape[left] = shape[right] = out
    total = gram.new_zeros(shape)
    for tap in range(taps):
        offset = tap * dilation - pad  # output o sees the pixel o stride + offset
        first = max(0, -(offset // stride))
        last = min(out - 1, (size - 1 - offset) // stride)
        if first > last:
            continue
        to, source = slice(first, last + 1), slice(first * stride + offset, last * stride + offset + 1, stride)
        total[_both(gram.ndim, left, right, to)] += gram[_both(gram.ndim, left, right, source)]
    return total


def _both(ndim: int, left: int, right: int, cut: slice) -> tuple[slice, ...]:
    return tuple(cut if dim in (left, right) else slice(None) for dim in range(ndim))


def patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: Sequence[Pad]
) -> Tensor:
    """The patches (B, p, channels * taps) of x (B, channels, *space), padded with zeros."""
    out = out_sizes(x.shape[2:], kernel, stride, dilation, padding)
    flat = [n for pad in reversed(padding) for n in pad]
    x = F.pad(x, flat) if any(flat) else x
    strides = list(x.stride())
    size = [*x.shape[:2], *out, *kernel]
    steps = [a * b for a, b in zip(strides[2:], stride, strict=True)]
    taps = [a * b for a, b in zip(strides[2:], dilation, strict=True)]
    windows = x.as_strided(size, [*strides[:2], *steps, *taps])  # (B, channels, *out, *kernel)
    n = len(out)
    order = [0, *range(2, 2 + n), 1, *range(2 + n, 2 + 2 * n)]
    return windows.permute(order).reshape(len(x), math.prod(out), x.shape[1] * math.prod(kernel))


def neighbours(T: Tensor, taps: int, stride: int, dilation: int) -> list[Tensor]:
    """What each tap of a kernel of one dimension sees of T (..., w, channels): views (..., out, channels)."""
    out = (T.shape[-2] - dilation * (taps - 1) - 1) // stride + 1
    starts = [tap * dilation for tap in range(taps)]
    return [T[..., start : start + (out - 1) * stride + 1 : stride, :] for start in starts]
