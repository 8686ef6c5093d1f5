"""`bnn.keep_dropout_`: torch's Dropout layers as parts of a draw."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnn
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass, one_by_one
from bnn._engine.noise import Seeds

DRAWS = 4_000
KINDS = {"0d": nn.Dropout(0.3), "1d": nn.Dropout1d(0.3), "2d": nn.Dropout2d(0.3), "3d": nn.Dropout3d(0.3)}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def shape_for(kind: str) -> tuple[int, ...]:
    return (2, 3, *[2] * int(kind[0]))


def mlp(p: float = 0.3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Dropout(p), nn.Linear(32, 2)).double().eval()


def kept(net: nn.Module) -> Any:
    bnn.keep_dropout_(net)
    return net


class Twice(nn.Module):
    """One Dropout layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.drop(x), self.drop(x)])


@every_kind
def test_masks_are_torchs_in_both_modes(kind: str) -> None:
    """The values, and how often entries are dropped together, against torch's own in train mode; 4,000 draws each."""
    plain, x = KINDS[kind], torch.ones(shape_for(kind)).double()
    net = kept(nn.Sequential(copy.deepcopy(plain)))
    for mode in (True, False):
        net.train(mode)
        ours = bnn.draws(net, x, samples=DRAWS)
        theirs = torch.stack([plain.train()(x) for _ in range(DRAWS)])
        assert set(ours.unique().tolist()) == set(theirs.unique().tolist()) == {0.0, 1 / 0.7}
        second = [torch.einsum("ki,kj->ij", y.flatten(1), y.flatten(1)) / DRAWS for y in (ours, theirs)]
        torch.testing.assert_close(second[0], second[1], atol=8 * 2 / DRAWS**0.5, rtol=0.0)
        torch.testing.assert_close(bnn.draws(net, x, samples=0)[0], x)


@every_kind
def test_folded_draws_are_single_passes_and_a_frozen_draw_is_a_function(kind: str) -> None:
    net, x = kept(nn.Sequential(copy.deepcopy(KINDS[kind]))), torch.randn(shape_for(kind)).double()
    draw = Draw(count=5, seeds=Seeds(net, 8), inputs=len(x))
    single = one_by_one(net, [x] * 5, [draw.only(k, k + 1) for k in range(5)])
    torch.testing.assert_close(in_one_pass(net, x, draw), torch.stack(single))
    same = x[:1].expand(6, *x.shape[1:])
    for seed in range(8):
        with bnn.frozen_draw(net, seed):
            y = net(same)
            assert torch.equal(y, y[:1].expand_as(y))  # one mask for the batch
            assert torch.equal(net(same[:2]), y[:2])
    bnn.set_sampling_(net, "weight")
    y = bnn.draws(net, same, samples=8)
    assert torch.equal(y, y[:, :1].expand_as(y))
    assert len(y.flatten(1).unique(dim=0)) > 1


def test_draws_of_a_network() -> None:
    """Given the hidden units, outputs have mean W h + b and covariance p / (1 - p) W diag(h^2) W^T; 4,000 draws."""
    net, x = mlp(), torch.randn(3, 4).double()
    h = net[:2](x)
    assert torch.equal(net(x), net(x))
    bnn.keep_dropout_(net)
    assert not torch.equal(net(x), net(x))
    with torch.no_grad():
        y = bnn.draws(net, x, samples=DRAWS)
        W = net[3].weight
        for n in range(3):
            want = 0.3 / 0.7 * (W * h[n].square()) @ W.mT
            sd = want.diagonal().sqrt()
            assert ((y[:, n].mean(0) - net[3](h[n])) / sd).abs().max() < 5 / DRAWS**0.5
            assert ((torch.cov(y[:, n].mT) - want) / (sd[:, None] * sd)).abs().max() < 8 / DRAWS**0.5
    same = [bnn.draws(net, x, samples=k, generator=torch.Generator().manual_seed(3)) for k in (4, 9)]
    torch.testing.assert_close(same[0], same[1][:4])  # the first draws do not depend on how many there are
    assert bnn.predict(net, x).epistemic.min() > 0


def test_two_places_have_masks_of_their_own() -> None:
    net, x = kept(Twice()), torch.ones(40, 50)
    first, second = net(x)
    assert not torch.equal(first, second)
    with bnn.frozen_draw(net, 1):
        assert torch.equal(net(x), net(x))
        assert not torch.equal(*net(x))
    draw = Draw(count=3, seeds=Seeds(net, 8), inputs=40)
    single = one_by_one(net, [x] * 3, [draw.only(k, k + 1) for k in range(3)])
    torch.testing.assert_close(in_one_pass(net, x, draw), torch.stack(single))


def test_gradient_checkpointing() -> None:
    net, x = kept(mlp()), torch.randn(6, 4).double()
    gradients = []
    for run in (net, lambda x: checkpoint(net, x, use_reentrant=False)):
        torch.manual_seed(5)
        gradients.append(torch.autograd.grad(run(x).square().sum(), list(net.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    twice = kept(Twice())
    with pytest.raises(RuntimeError, match="give each place a Dropout layer of its own"):
        checkpoint(twice, x.clone().requires_grad_(), use_reentrant=False)


def test_beside_bayesian_layers_and_in_training() -> None:
    net = mlp().float()
    bnn.bayesianize_(net, "ffg")
    bnn.keep_dropout_(net)
    out = bnn.ELBO(net, 20, "categorical", samples=3)(torch.randn(20, 4), torch.randint(2, (20,)))
    out.loss.backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    assert bnn.predict(net, torch.randn(5, 4), samples=4).epistemic.shape == (5,)


def test_files_copies_and_the_way_back(tmp_path: pathlib.Path) -> None:
    net, x = kept(mlp()), torch.randn(3, 4).double()
    bnn.set_sampling_(net, "weight")
    path = tmp_path / "net.safetensors"
    bnn.save(net, path)
    fresh = mlp()
    bnn.load_(fresh, path)
    for twin in (fresh, copy.deepcopy(net)):
        with bnn.frozen_draw(net, 2):
            want = net(x)
        with bnn.frozen_draw(twin, 2):
            assert torch.equal(twin(x), want)
        assert twin[2].options.sampling == "weight"
        assert list(twin.state_dict()) == list(mlp().state_dict())
    with pytest.raises(ValueError, match=r"other layers: '2': not a Dropout layer here"):
        bnn.load_(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Identity(), nn.Linear(32, 2)), path)
    with pytest.raises(ValueError, match=r"Bayesian already: '2'"):
        bnn.load_(kept(mlp()), path)
    bnn.keep_dropout_(net, keep=False)
    assert type(net[2]) is nn.Dropout
    assert torch.equal(net(x), net(x))
    bnn.save(net, path)
    bnn.load_(mlp(), path)


def test_nothing_to_keep_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'no layer of nn.Dropout.*"mc-dropout"'):
        bnn.keep_dropout_(nn.Linear(3, 2))
    with pytest.raises(TypeError, match="expected a network"):
        bnn.keep_dropout_(3)  # type: ignore[arg-type]


def test_the_ends_of_p() -> None:
    x = torch.randn(4, 5)
    for p, want in ((0.0, x), (1.0, torch.zeros_like(x))):
        torch.testing.assert_close(kept(nn.Sequential(nn.Dropout(p)))(x), want)


def test_fit_and_evaluate_draw() -> None:
    net = kept(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)))
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    data = (x, (x[:, 0] > 0).long())
    bnn.fit(net, data, validation=data, epochs=2, progress=False)
    found = bnn.evaluate(net, data, samples=5, resamples=10)
    assert found.draws == 5
    assert found.uncertainty.epistemic > 1e-4
    bnn.keep_dropout_(net, keep=False)
    assert bnn.evaluate(net, data, samples=5, resamples=10).draws == 1
