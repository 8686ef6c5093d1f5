"""Inner products of patches, against patches cut out one by one."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bnn.functional.patches import gram_multiplies, patch_gram

CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Case(NamedTuple):
    id: str
    space: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    by_patches: bool  # strides leave so few that they are multiplied themselves


CASES = [
    Case("1d", (7,), (3,), (1,), (1,), False),
    Case("1d-dilation", (12,), (3,), (1,), (2,), False),
    Case("1d-stride", (9,), (3,), (2,), (1,), True),
    Case("1d-stride-dilation", (11,), (3,), (3,), (2,), True),
    Case("1d-one-patch", (4,), (4,), (1,), (1,), True),
    Case("1d-left-over", (8,), (2,), (3,), (1,), True),  # the last pixels belong to no patch
    Case("2d", (5, 6), (3, 2), (1, 1), (1, 1), False),
    Case("2d-one-by-one", (4, 3), (1, 1), (1, 1), (1, 1), False),
    Case("2d-one-by-one-stride", (4, 5), (1, 1), (2, 2), (1, 1), True),
    Case("2d-dilation", (9, 8), (3, 3), (1, 1), (2, 1), False),
    Case("2d-stride-by-pixels", (9, 9), (3, 3), (1, 2), (1, 1), False),
    Case("2d-stride", (7, 8), (3, 3), (2, 2), (1, 1), True),
    Case("2d-stride-dilation", (9, 8), (3, 2), (2, 3), (2, 1), True),
    Case("3d", (4, 3, 5), (2, 2, 2), (1, 1, 1), (1, 1, 1), False),
    Case("3d-stride", (5, 4, 6), (2, 2, 3), (2, 1, 3), (1, 1, 1), True),
    Case("3d-stride-dilation", (5, 4, 5), (2, 1, 2), (1, 2, 2), (3, 1, 2), True),
]
CHANNELS = 3
parametrize = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


def make_input(case: Case, batch: int = 2) -> Tensor:
    return torch.randn(batch, CHANNELS, *case.space, dtype=torch.double)


def out_space(case: Case) -> tuple[int, ...]:
    """The positions of a convolution, by torch."""
    x, weight = make_input(case, 1), torch.ones(1, CHANNELS, *case.kernel, dtype=torch.double)
    return CONVS[len(case.space)](x, weight, stride=case.stride, dilation=case.dilation).shape[2:]


def cut_patches(x: Tensor, case: Case) -> Tensor:
    """(B, p, channels * taps), one slice per position."""
    rows = []
    for position in itertools.product(*map(range, out_space(case))):
        steps = zip(position, case.kernel, case.stride, case.dilation, strict=True)
        cut = tuple(slice(o * s, o * s + d * (k - 1) + 1, d) for o, k, s, d in steps)
        rows.append(x[(slice(None), slice(None), *cut)].flatten(1))
    return torch.stack(rows, dim=1)


def gram(x: Tensor, case: Case) -> Tensor:
    return patch_gram(x, case.kernel, case.stride, case.dilation, [(0, 0)] * len(case.space))


@parametrize
def test_cut_patches_are_those_of_a_convolution(case: Case) -> None:
    """The oracle's own check."""
    x, weight = make_input(case), torch.randn(4, CHANNELS, *case.kernel, dtype=torch.double)
    output = CONVS[len(case.space)](x, weight, stride=case.stride, dilation=case.dilation)
    torch.testing.assert_close(cut_patches(x, case) @ weight.flatten(1).T, output.flatten(2).mT)


@parametrize
def test_gram_of_patches(case: Case) -> None:
    x = make_input(case)
    rows = cut_patches(x, case)
    torch.testing.assert_close(gram(x, case), rows @ rows.mT)


@parametrize
def test_padding_is_zeros_around(case: Case) -> None:
    """Against the padded input: also padding on one side only, and wider than the kernel."""
    for pad in [(1, 1), (0, 2), (3, 1)]:
        x, padding = make_input(case), [pad, *[(0, 0)] * (len(case.space) - 2), pad][: len(case.space)]
        around = F.pad(x, [n for sides in reversed(padding) for n in sides])
        expected = patch_gram(around, case.kernel, case.stride, case.dilation, [(0, 0)] * len(case.space))
        torch.testing.assert_close(patch_gram(x, case.kernel, case.stride, case.dilation, padding), expected)


@parametrize
def test_gram_multiplies_counts_what_is_done(case: Case) -> None:
    """torch's own count of the one product, per input; and the branch is the expected one."""
    with FlopCounterMode(display=False) as counter:
        gram(make_input(case, 5), case)
    out = out_space(case)
    stated = gram_multiplies(CHANNELS, case.space, out, case.kernel)
    assert 2 * 5 * stated == counter.get_total_flops()
    pixels, patches = math.prod(case.space) ** 2, math.prod(out) ** 2 * math.prod(case.kernel)
    assert stated == CHANNELS * (patches if case.by_patches else pixels)
    assert (patches < pixels) == case.by_patches


@parametrize
def test_memory_layout_does_not_matter(case: Case) -> None:
    """Channels last in memory, an expanded batch, and a window of a larger tensor."""
    x = make_input(case)
    expected = gram(x, case)
    channels_last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    torch.testing.assert_close(gram(channels_last, case), expected)
    torch.testing.assert_close(gram(x[:1].expand(3, *x.shape[1:]), case), expected[:1].expand(3, -1, -1))
    larger = F.pad(x, [1, 2] * len(case.space), value=7.0)
    window = larger[(..., *(slice(1, 1 + size) for size in case.space))]
    assert window.storage_offset() > 0
    torch.testing.assert_close(gram(window, case), expected)


@parametrize
def test_no_inputs(case: Case) -> None:
    patches = math.prod(out_space(case))
    assert gram(make_input(case, 0), case).shape == (0, patches, patches)


SMALL = [case for case in CASES if case.id in ("1d-dilation", "1d-stride-dilation", "2d-one-by-one-stride", "3d")]


@pytest.mark.parametrize("case", SMALL, ids=[case.id for case in SMALL])
def test_gradients(case: Case) -> None:
    """Those of the explicit patches, in both branches."""
    x = make_input(case).requires_grad_()
    rows = cut_patches(x, case)
    weight = torch.randn(rows.shape[1], rows.shape[1], dtype=torch.double)
    (expected,) = torch.autograd.grad((weight * (rows @ rows.mT)).sum(), x)
    (ours,) = torch.autograd.grad((weight * gram(x, case)).sum(), x)
    torch.testing.assert_close(ours, expected)
