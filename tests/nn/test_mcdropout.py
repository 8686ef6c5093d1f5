"""MC dropout: masks against Bernoulli's moments, the same marginals whoever shares a mask, and the plain layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass, one_by_one
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.functional.dropout import dropout_mask

DRAWS = 20_000
CASES = [
    (nn.Linear(5, 4), (3, 5)),
    (nn.Linear(5, 4, bias=False), (2, 3, 5)),
    (nn.Conv1d(4, 6, 3, padding=1, groups=2), (2, 4, 5)),
    (nn.Conv2d(2, 3, 2), (2, 2, 3, 3)),
    (nn.Conv3d(2, 3, 2), (2, 2, 3, 2, 2)),
]
every_case = pytest.mark.parametrize(("plain", "shape"), CASES, ids=[str(plain) for plain, _ in CASES])
by_channels = pytest.mark.parametrize("channels", [False, True])
both_ways = pytest.mark.parametrize("sampling", ["auto", "weight"])


def made(plain: nn.Module, **options: Any) -> Any:
    return bayesian_from_template(plain, "mcdropout", **options).double()


def drawn(layer: Any, x: Tensor, count: int = DRAWS) -> Tensor:
    with torch.no_grad():
        return layer.output(x[None], Draw(count=count, seeds=Seeds(layer, 3), inputs=len(x)))


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 0.9])
def test_a_mask_is_bernoullis(p: float) -> None:
    mask = dropout_mask(torch.randn(200_000, dtype=torch.double), p)
    assert set(mask.unique().tolist()) <= {0.0, 1 / (1 - p)}
    error = (p * (1 - p) / 200_000) ** 0.5
    assert (mask == 0).double().mean().item() == pytest.approx(p, abs=5 * error)


@both_ways
@by_channels
@every_case
def test_the_moments_of_every_inputs_output(
    plain: nn.Module, shape: tuple[int, ...], channels: bool, sampling: str
) -> None:
    """E[y] = W x + b; Cov[y] = p / (1 - p) sum over the entries of a mask of (dy/dm) (dy/dm)^T. 20,000 draws."""
    torch.manual_seed(1)
    p, x = 0.3, torch.randn(shape).double()
    layer = made(plain, p=p, channels=channels, sampling=sampling)
    mask_shape = list(shape[1:])
    if channels or isinstance(plain, nn.Linear):
        channel = len(shape) - 1 if isinstance(plain, nn.Linear) else 1
        mask_shape = [size if dim == channel else 1 for dim, size in enumerate(shape)][1:]
    outputs = drawn(layer, x)
    for n in range(len(x)):
        jacobian = torch.autograd.functional.jacobian(
            lambda m, n=n: layer.run((x[n] * m)[None], *layer.mean_weights())[0], torch.ones(mask_shape).double()
        )
        flat = outputs[:, n].flatten(1)
        J = jacobian.reshape(flat.shape[1], -1)
        mean, want = layer.run(x[n : n + 1], *layer.mean_weights()).flatten().detach(), p / (1 - p) * J @ J.mT
        sd = want.diagonal().sqrt()
        assert ((flat.mean(0) - mean) / sd).abs().max() < 5 / DRAWS**0.5
        assert ((torch.cov(flat.mT) - want) / (sd[:, None] * sd)).abs().max() < 10 / DRAWS**0.5


@by_channels
@every_case
def test_the_mask_is_one_for_the_batch_or_one_per_input(
    plain: nn.Module, shape: tuple[int, ...], channels: bool
) -> None:
    x = torch.randn(1, *shape[1:]).double().expand(6, *shape[1:])  # six times the same input
    layer = made(plain, p=0.5, channels=channels)
    apart, together = drawn(layer, x, 40), drawn(made(plain, p=0.5, channels=channels, sampling="weight"), x, 40)
    assert (apart.std(1) > 0).flatten(1).any(1).float().mean() > 0.8
    torch.testing.assert_close(together, together[:, :1].expand_as(together))
    with bnn.frozen_draw(layer, 2):
        y = layer(x)
        torch.testing.assert_close(y, y[:1].expand_as(y))
        torch.testing.assert_close(layer(x[:2]), y[:2])
    assert not torch.equal(layer(x), layer(x))


@both_ways
@by_channels
@every_case
def test_folded_draws_are_single_passes(
    plain: nn.Module, shape: tuple[int, ...], channels: bool, sampling: str
) -> None:
    layer = made(plain, p=0.4, channels=channels, sampling=sampling)
    x = torch.randn(shape).double()
    draw = Draw(count=4, seeds=Seeds(layer, 8), inputs=len(x))
    single = one_by_one(layer, [x] * 4, [draw.only(k, k + 1) for k in range(4)])
    torch.testing.assert_close(in_one_pass(layer, x, draw), torch.stack(single))


@every_case
def test_without_dropping_it_is_the_plain_layer(plain: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).double()
    want = plain.double()(x)
    torch.testing.assert_close(made(plain, p=0.0)(x), want)
    layer = made(plain, p=0.6)
    torch.testing.assert_close(bnn.draws(layer, x, samples=0)[0], want)  # the posterior mean drops nothing
    for mode in (True, False):
        layer.train(mode)
        assert not torch.allclose(layer(x), want)
    assert layer.kl_divergence() == 0


def test_a_draw_of_weights_has_columns_of_zeros() -> None:
    layer = made(nn.Conv2d(4, 6, 3, groups=2), p=0.5, channels=True)
    weight, bias = layer.sample_weights(Draw(count=50))
    assert torch.equal(bias, layer.bias.expand(50, -1))
    ratio = (weight / layer.weight).detach()
    torch.testing.assert_close(ratio, ratio[..., :1, :1].expand_as(ratio))  # whole channels
    groups = ratio[..., 0, 0].unflatten(1, (2, 3))
    torch.testing.assert_close(groups, groups[:, :, :1].expand_as(groups))  # the outputs of a group lose the same
    assert set(groups.unique().round(decimals=6).tolist()) == {0.0, 2.0}
    assert not torch.equal(groups[:, 0], groups[:, 1])
    with pytest.raises(ValueError, match="no weights are drawn: use channels=True"):
        made(nn.Conv2d(4, 6, 3), p=0.5).sample_weights(Draw())


@pytest.mark.parametrize(
    ("option", "value"), [("p", 1.0), ("p", -0.1), ("p", None), ("p", "0.1"), ("channels", 1), ("sampling", "exact")]
)
def test_bad_values_are_named(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option}.*{value!r}"):
        made(nn.Linear(3, 2), **{option: value})
