"""The mixture's NLL as a function of the inverse temperature, against softmax and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnn.functional.temperature import mixture_losses


def of_softmax(logits: Tensor, y: Tensor, inverse: Tensor) -> Tensor:
    """-log 1/K sum_k softmax(b f_k)_y of every row."""
    probs = (inverse * logits).softmax(-1)  # (K, N, C)
    return -probs.mean(0)[torch.arange(len(y)), y].log()


@pytest.mark.parametrize("inverse", [0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("draws", [1, 4])
def test_value_slope_and_curvature(draws: int, inverse: float) -> None:
    logits = 3 * torch.randn(draws, 6, 5, dtype=torch.double)
    y = torch.randint(5, (6,))
    gaps = logits - logits.gather(-1, y[None, :, None].expand(draws, -1, 1))
    found = mixture_losses(gaps, inverse)
    b = torch.tensor(inverse, dtype=torch.double, requires_grad=True)
    for row in range(6):
        loss = of_softmax(logits, y, b)[row]
        (slope,) = torch.autograd.grad(loss, b, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, b)
        for one, expected in zip(found, (loss, slope, curvature), strict=True):
            torch.testing.assert_close(one[row], expected.detach(), rtol=1e-9, atol=1e-11)


def test_one_draw_is_convex_and_a_mixture_need_not_be() -> None:
    gaps = torch.tensor([[[0.0, 4.0]], [[0.0, 0.1]]])  # both wrong, one as sure as can be: it stops to count
    assert all(float(mixture_losses(gaps[:1], b)[2]) > 0 for b in (0.1, 1.0, 2.0))
    assert float(mixture_losses(gaps, 1.0)[2]) < 0


def test_huge_gaps_stay_finite() -> None:
    gaps = torch.tensor([[[0.0, -1e6], [0.0, 1e6]]])
    losses, slopes, curvatures = mixture_losses(gaps, 20.0)
    assert torch.equal(losses, torch.tensor([0.0, 2e7], dtype=torch.double))
    assert all(bool(torch.isfinite(one).all()) for one in (slopes, curvatures))
