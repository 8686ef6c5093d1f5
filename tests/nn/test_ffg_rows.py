"""When a mean-field layer draws its outputs instead of its weights, and that every input keeps its distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import BASIC, LayerType, ids, make, set_noise_, softplus_inverse
from helpers import FAMILIES as ALL
from torch import Tensor, nn

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn._engine.noise import Seeds

FFG = next(family for family in ALL if family.id == "ffg")
ERRORS = 5.0  # in standard errors


@pytest.fixture(autouse=True)
def _rows_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bnn.nn.families.gaussian_weights.by_row", lambda *_: True)


def network(sampling: str, conv: bool = False, **options: Any) -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1) if conv else nn.Linear(4, 3), nn.Tanh())
    bnn.bayesianize_(net, "ffg", sampling=sampling, **options)
    set_noise_(net, 0.5)
    return net.double()


def one_function(outputs: Tensor) -> bool:
    """Whether all inputs of a batch (N, ...), which are equal, get one output."""
    return torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=0, atol=1e-10)


def repeated(*shape: int) -> Tensor:
    return torch.randn(1, *shape).double().expand(4, *shape)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    ("sampling", "conv", "one"),
    [
        ("auto", False, False),  # an input is one row
        ("auto", True, True),  # positions share weights, so the weights are drawn
        ("weight", False, True),
        ("weight", True, True),
        ("local", False, False),
        ("local", True, False),
    ],
)
def test_what_predictions_draw(sampling: str, conv: bool, one: bool, samples: int) -> None:
    net, x = network(sampling, conv), repeated(2, 4, 4) if conv else repeated(4)
    assert all(one_function(output) == one for output in bnn.draws(net, x, samples))
    bnn.set_sampling_(net, "weight")
    assert all(one_function(output) for output in bnn.draws(net, x, samples))


@pytest.mark.parametrize("sampling", ["auto", "local", "weight"])
@pytest.mark.parametrize("local", [True, False])
def test_what_training_draws(sampling: str, local: bool) -> None:
    """As `local_reparameterization` says, unless one function was asked for."""
    net, x = network(sampling, local_reparameterization=local), repeated(4)
    one = sampling == "weight" or not local
    assert one_function(net(x)) == one
    seen: list[Tensor] = []
    bnn.ELBO(net, 4, lambda output, _: seen.append(output) or output.square(), samples=2)(x, None)
    assert [one_function(output) for output in seen] == [one] * 2
    with bnn.frozen_draw(net, 1):
        assert one_function(net(x))


def test_auto_draws_weights_where_rows_are_not_the_networks_inputs() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.reshape(-1, 2)).reshape(len(x), -1, 3)  # (N, windows, 3)

    windows, sequences = Windows(), nn.Linear(2, 3)
    normed = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for net in (windows, sequences, normed):
        bnn.bayesianize_(net, "ffg")
        set_noise_(net, 0.5)
    assert all(one_function(output.flatten(0, 1)) for output in bnn.draws(windows, torch.ones(4, 6), 2))
    assert all(one_function(output.flatten(0, 1)) for output in bnn.draws(sequences, torch.ones(4, 3, 2), 2))
    x = torch.cat([torch.ones(3, 2), torch.randn(2, 2)])
    seen: list[Tensor] = []
    normed[1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    for training, one in ((True, True), (False, False)):
        bnn.draws(normed.train(training), x, 1)
        assert torch.allclose(seen[-1][:3], seen[-1][:1].expand(3, 3), atol=1e-6) == one


@pytest.mark.parametrize("sampling", ["auto", "local", "weight"])
@pytest.mark.parametrize("case", BASIC, ids=ids(BASIC))
def test_every_output_has_the_moments_of_drawn_weights(case: LayerType, sampling: str) -> None:
    """20,000 draws: the mean and variance of each output against those under q(W), in closed form."""
    layer, n = make(FFG, case, sampling=sampling).double(), 20_000
    x = case.input().double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn_like(parameter) + (softplus_inverse(0.5) if "sd" in name else 0.0))
        draw = Draw(Call(layer, n, restarts=True), n, Seeds(layer, 1), inputs=len(x))
        outputs = in_one_pass(layer, x, draw)
        mean, sds = layer.mean_weights(), layer.sds()
        parts = tuple(part for part in mean if part is not None)
    jacobians = torch.autograd.functional.jacobian(lambda *w: layer.run(x, w[0], w[1] if len(w) > 1 else None), parts)
    spreads = [sd for sd in sds if sd is not None]
    variance = sum((j * sd).square().flatten(x.ndim).sum(-1) for j, sd in zip(jacobians, spreads, strict=True))
    want = layer.run(x, *mean)
    assert ((outputs.mean(0) - want).abs() < ERRORS * (variance / n).sqrt()).all()
    assert ((outputs - want).square().mean(0) - variance).abs().le(ERRORS * variance * (2 / n) ** 0.5).all()
