"""The rows of a convolution: inner products of patches without forming the patches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def gram_multiplies(channels: int, space: Sequence[int], out: Sequence[int], kernel: Sequence[int]) -> int:
    """Multiplies that `patch_gram` takes per input: by pixels, or by patches where strides leave few of them."""
    pixels, patches = math.prod(space), math.prod(out)
    return channels * min(pixels**2, patches**2 * math.prod(kernel))


def patch_gram(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """X X^T (B, p, p), the inner products of all pairs of patches of x (B, channels, *space), already padded.

    Patches overlap, so most of their products are shared: the pixels' Gram matrix (B, *space, *space), summed along its
    diagonals over the taps of the kernel, one dimension of space after the other. Where strides leave few patches, the
    patches themselves are multiplied.
    """
    space = x.shape[2:]
    out = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(space, kernel, stride, dilation, strict=True)]
    if math.prod(space) ** 2 > math.prod(out) ** 2 * math.prod(kernel):
        rows = _patches(x, kernel, stride, dilation, out)
        return rows @ rows.mT
    pixels = x.flatten(2).mT  # (B, pixels, channels)
    gram = (pixels @ pixels.mT).reshape(len(x), *space, *space)
    for i in range(len(space)):
        gram = _sum_taps(gram, 1 + i, 1 + len(space) + i, kernel[i], stride[i], dilation[i], out[i])
    return gram.reshape(len(x), math.prod(out), math.prod(out))


def _sum_taps(gram: Tensor, left: int, right: int, taps: int, stride: int, dilation: int, out: int) -> Tensor:
    """Sums `gram` over equal offsets in its dimensions `left` and `right`."""
    total = None
    for tap in range(taps):
        cut = slice(tap * dilation, tap * dilation + (out - 1) * stride + 1, stride)
        index = [slice(None)] * gram.ndim
        index[left] = index[right] = cut
        part = gram[tuple(index)]
        total = part if total is None else total + part
    assert total is not None
    return total


def _patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Tensor:
    """The patches (B, p, channels * taps) of x."""
    strides = list(x.stride())
    size = [*x.shape[:2], *out, *kernel]
    steps = [a * b for a, b in zip(strides[2:], stride, strict=True)]
    taps = [a * b for a, b in zip(strides[2:], dilation, strict=True)]
    windows = x.as_strided(size, [*strides[:2], *steps, *taps])  # (B, channels, *out, *kernel)
    n = len(out)
    order = [0, *range(2, 2 + n), 1, *range(2 + n, 2 + 2 * n)]
    return windows.permute(order).reshape(len(x), math.prod(out), x.shape[1] * math.prod(kernel))
