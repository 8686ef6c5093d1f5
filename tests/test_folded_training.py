"""Several draws per step: in one pass, on all of the batch or on shares of it. Precisions, layouts, compilation."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES, set_noise_
from torch import Tensor, nn

import bnn
import bnn.objective
from bnn.nn.base import BayesianLayer
from bnn.nn.nets import make_network

SIZE = 3


def network(sampling: str = "auto", **options: Any) -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, sampling=sampling, **options)
    return net


def ensemble(**options: Any) -> nn.Sequential:
    """Members that differ, and nothing else that is random."""
    net = network(q_inducing="ensemble", ensemble_size=SIZE, max_lamda=0, **options)
    set_noise_(net, 0.3)
    return net


def data(n: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 4, 4), torch.randint(4, (n,))


def member_outputs(net: nn.Module, x: Tensor) -> Tensor:
    """(members, N, C), by the weights of each member."""
    outputs = []
    for member in range(SIZE):
        with torch.no_grad():
            conv, linear = (copy_of_member(layer, member) for layer in (net[0], net[3]))
        outputs.append(linear(F.relu(conv(x)).flatten(1)))
    return torch.stack(outputs)


def copy_of_member(layer: BayesianLayer, member: int) -> nn.Module:
    row, col = layer.factors()
    W = layer.prior_sd() * row.A.mT @ layer.inducing_mean[member] @ col.A
    plain = nn.Conv2d(2, 8, 3, padding=1) if W.shape[0] == 8 else nn.Linear(128, 4)
    weights = layer.from_matrix(W)
    plain.weight, plain.bias = nn.Parameter(weights.weight), nn.Parameter(weights.bias)
    return plain


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many draws each pass held."""
    passes: list[int] = []
    original = bnn.objective.in_one_pass

    def counted(net: Any, x: Any, draw: Any, dims: Any = None) -> Any:
        passes.append(draw.count)
        return original(net, x, draw, dims)

    monkeypatch.setattr(bnn.objective, "in_one_pass", counted)
    return passes


def test_every_member_trains_on_all_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = ensemble(), data()
    passes = count_passes(monkeypatch)
    found = bnn.ELBO(net, 100, "categorical", samples=SIZE)(x, y).data
    expected = torch.stack([F.cross_entropy(logits, y) for logits in member_outputs(net, x)]).mean()
    torch.testing.assert_close(found, expected)
    assert passes == [SIZE]


@pytest.mark.parametrize("n", [6, 7])
def test_every_member_trains_on_its_share(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is the mean over the batch, each input under one member; which member gets which share is random."""
    net, (x, y) = ensemble(), data(n)
    passes = count_passes(monkeypatch)
    losses = torch.stack([F.cross_entropy(logits, y, reduction="none") for logits in member_outputs(net, x)])
    orders = torch.cartesian_prod(*[torch.arange(SIZE)] * SIZE)
    shares = torch.arange(n) % SIZE
    possible = {
        round(float(losses.detach()[order[shares], torch.arange(n)].mean()), 5)
        for order in orders
        if len(set(order.tolist())) == SIZE
    }
    elbo = bnn.ELBO(net, 100, "categorical", samples=SIZE, split=True)
    found = {round(elbo(x, y).data.item(), 5) for _ in range(12)}
    assert all(min(abs(value - other) for other in possible) < 2e-5 for value in found)
    assert len(found) > 1
    assert passes == ([SIZE] * 12 if n % SIZE == 0 else [])


def test_shares_with_several_inputs_and_what_goes_along_whole() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
            return scale * (self.a(left) + self.b(right))

    net = Two()
    bnn.bayesianize_(net, "inducing", max_lamda=0, max_sd_u=0, **SIZES)  # the same function in every draw
    left, right, scale, y = torch.randn(6, 3), torch.randn(6, 4), torch.tensor(2.0), torch.randint(2, (6,))
    inputs = {"left": left, "right": right, "scale": scale}
    found = bnn.ELBO(net, 9, "categorical", samples=2, split=True)(inputs, y).data
    torch.testing.assert_close(found, F.cross_entropy(net(**inputs), y))


def test_too_few_inputs_to_share() -> None:
    elbo = bnn.ELBO(ensemble(), 100, "categorical", samples=SIZE, split=True)
    x, y = data(2)
    with pytest.raises(ValueError, match="share of the batch"):
        elbo(x, y)


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
def test_bfloat16_autocast(sampling: str) -> None:
    """Outputs and gradients near those in float32 with the same noise; factors stay in float32."""
    net, (x, y) = network(sampling, init_lamda=0.1), data()
    results = []
    for enabled in (False, True):
        net.zero_grad()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = net(x)
            assert {part.dtype for side in net[0].factors() for part in side} == {torch.float32}
        F.cross_entropy(logits.float(), y).backward()
        results.append((logits.float(), torch.cat([p.grad.flatten() for p in net.parameters()])))
        assert logits.dtype == (torch.bfloat16 if enabled else torch.float32)
    for exact, half in zip(*results, strict=True):
        assert (exact - half).norm() < 0.1 * exact.norm()  # bfloat16 keeps 8 bits
        assert not torch.equal(exact, half)


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
def test_channels_last_is_kept_and_changes_nothing(sampling: str) -> None:
    conv = nn.Conv2d(16, 32, 3, padding=1)
    bnn.bayesianize_(conv, "inducing", sampling=sampling, init_lamda=0.1, inducing_rows=4, inducing_cols=4)
    x = torch.randn(3, 16, 5, 5)
    outputs = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        outputs.append(conv(x.to(memory_format=layout)))
        assert outputs[-1].is_contiguous(memory_format=layout)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


BACKENDS = [
    "eager",
    pytest.param("inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")),
]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_a_compiled_resnet_in_one_graph(sampling: str) -> None:
    """The eager backend replays the very same operations, so the same random state gives the same output."""
    net = make_network("resnet18", out_features=4, kernel_size=3, remove_maxpool=True).eval()
    bnn.bayesianize_(net, "inducing", inducing_rows=8, inducing_cols=8, init_lamda=0.03, sampling=sampling)
    compiled, x = torch.compile(net, fullgraph=True, backend="eager"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        first, second = compiled(x), compiled(x)
    assert first.shape == (2, 4)
    assert first.isfinite().all()
    assert not torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, of many kinds
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_network_trains(backend: str) -> None:
    net, (x, y) = network(init_lamda=0.1), data()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    F.cross_entropy(compiled(x), y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_predict_keeps_samples_where_asked() -> None:
    net, (x, _) = network(), data()
    generator = torch.Generator().manual_seed(4)
    kept = bnn.predict(net, x, samples=3, generator=generator, keep_samples=True)
    torch.testing.assert_close(kept.probs, kept.samples.softmax(-1).mean(0))
    assert bnn.predict(net, x, samples=3).samples is None
    with pytest.raises(TypeError, match="no room for samples"):
        bnn.predict(net, x, samples=2, likelihood=Odd(), keep_samples=True)


class Odd(bnn.likelihoods.base.Likelihood):
    def predictive(self, outputs: Tensor) -> Tensor:
        return outputs.mean(0)
