"""Draws and predictions: one function per draw, repeatable, even over members, whatever the batch size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES, always, sizes_of
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn._engine.members import even_members
from bnn.functional.cost import Way


def network(inference: str = "inducing", **options: Any) -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    scales = {"init_sd": 0.3} if inference in ("ffg", "fcg") else {"init_lamda": 0.3}
    bnn.bayesianize_(net, inference, **sizes_of(inference), **scales, **options)
    return net


def images(n: int) -> Tensor:
    return torch.randn(n, 1, 4, 4)


ONE_FUNCTION = [  # per draw, for the whole batch
    ("ffg", {"sampling": "weight"}),
    ("ffg", {"sampling": "weight", "local_reparameterization": False}),
    ("fcg", {}),
    ("inducing", {"sampling": "weight"}),
    ("inducing", {"max_lamda": 0}),
    ("inducing", {"max_lamda": 0, "q_inducing": "ensemble", "init": "paper"}),
]


@pytest.mark.parametrize(("inference", "options"), ONE_FUNCTION)
def test_batches_and_generators_do_not_change_the_draws(inference: str, options: dict[str, Any]) -> None:
    net, x = network(inference, **options).eval(), images(7)
    whole = bnn.draws(net, x, samples=3, generator=torch.Generator().manual_seed(1))
    parts = bnn.draws(net, x, samples=3, generator=torch.Generator().manual_seed(1), batch_size=3)
    other = bnn.draws(net, x, samples=3, generator=torch.Generator().manual_seed(2))
    assert whole.shape == (3, 7, 3)
    assert torch.allclose(whole, parts, atol=1e-6)
    assert not torch.allclose(whole, other)
    assert not torch.allclose(whole[0], whole[1])


@pytest.mark.parametrize("way", [Way.JOINT, Way.PER_ROW, Way.JOINT_WITHOUT_COLUMNS, Way.PER_ROW_WITHOUT_COLUMNS])
def test_batches_change_nothing_but_the_noise_of_inputs(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever u and C are, without the noise that is drawn per input every batch sees the same."""
    always(monkeypatch, way)
    net, x = network(sampling="local", q_inducing="ensemble", init="paper").eval(), images(7)
    seeded = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    whole, parts = (bnn.draws(net, x, 3, seeded(), batch_size) for batch_size in (None, 3))
    assert not torch.allclose(whole, parts, atol=1e-2)
    again = bnn.draws(net, x[:3].repeat(2, 1, 1, 1), 3, seeded(), 3)
    assert not torch.allclose(again[:, :3], again[:, 3:], atol=1e-2)  # two batches share no noise of inputs
    normals = Draw.normals

    def without_rows(*args: Any, by_input: bool = False, **kwargs: Any) -> Tensor:
        return normals(*args, **kwargs) * (not by_input)

    monkeypatch.setattr(Draw, "normals", without_rows)
    whole, parts = (bnn.draws(net, x, 3, seeded(), batch_size) for batch_size in (None, 3))
    assert torch.allclose(whole, parts, atol=1e-5)
    assert whole.std(0).min() > 1e-3


def test_the_global_seed_repeats_draws_without_a_generator() -> None:
    net, x = network().eval(), images(2)
    torch.manual_seed(5)
    first = bnn.draws(net, x, samples=2)
    torch.manual_seed(5)
    assert torch.equal(bnn.draws(net, x, samples=2), first)


@pytest.mark.parametrize(("inference", "options"), ONE_FUNCTION)
def test_a_draw_is_one_function_of_all_inputs(inference: str, options: dict[str, Any]) -> None:
    net = network(inference, **options).eval()
    x = images(1).expand(6, -1, -1, -1)
    outputs = bnn.draws(net, x, samples=4)
    assert torch.allclose(outputs, outputs[:, :1].expand_as(outputs), atol=1e-6)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)


@pytest.mark.parametrize("inference", ["ffg", "fcg", "inducing"])
def test_zero_samples_is_the_posterior_mean(inference: str) -> None:
    net, x = network(inference).eval(), images(5)
    conv, linear = net[0], net[4]
    h = F.relu(net[1](F.conv2d(x, conv.weight, conv.bias))).flatten(1)
    expected = F.linear(h, linear.weight, linear.bias)
    assert torch.allclose(bnn.draws(net, x, samples=0), expected[None], atol=1e-6)
    probs = bnn.predict(net, x, samples=0).probs
    assert torch.allclose(probs, expected.softmax(1), atol=1e-6)


def test_members_are_used_evenly() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", ensemble_size=5, max_lamda=0, **SIZES)
    outputs = bnn.draws(net, torch.ones(1, 2), samples=20)[:, 0]
    distinct, counts = outputs.unique(dim=0, return_counts=True)
    assert len(distinct) == 5
    assert counts.tolist() == [4] * 5
    assert sorted(even_members(net, 7)[:5]) == [0, 1, 2, 3, 4]
    assert even_members(nn.Linear(2, 2), 3) is None


def test_predict_takes_the_uncertainty_apart() -> None:
    """Against entropies computed by hand from the same draws."""
    net, x = network(), images(6)
    p = bnn.predict(net, x, samples=8, generator=torch.Generator().manual_seed(0))
    net.eval()
    probs = bnn.draws(net, x, samples=8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    entropy = lambda q: -(q * q.log()).sum(-1)  # noqa: E731
    assert torch.allclose(p.probs, probs.mean(0), atol=1e-6)
    assert torch.allclose(p.total, entropy(probs.mean(0)), atol=1e-5)
    assert torch.allclose(p.aleatoric, entropy(probs).mean(0), atol=1e-5)
    assert torch.allclose(p.epistemic, p.total - p.aleatoric, atol=1e-5)
    assert (p.epistemic > 0).all()


def test_regression() -> None:
    net, x = nn.Linear(3, 1), torch.randn(4, 3)
    bnn.bayesianize_(net, "fcg", init_sd=0.5)
    noise = bnn.likelihoods.Gaussian(sd=0.2, learn=False)
    p = bnn.predict(net, x, samples=4000, likelihood=noise)
    variance = 0.25 * (x.square().sum(1, keepdim=True) + 1)  # of w x + b with sds 0.5
    assert torch.allclose(p.epistemic, variance, rtol=0.15)  # 4,000 draws: relative sd 0.022
    assert torch.allclose(p.aleatoric, torch.full_like(variance, 0.04))
    assert torch.allclose(p.mean, F.linear(x, net.weight, net.bias), atol=5 * math.sqrt(variance.max() / 4000))


def test_predict_leaves_modes_gradients_and_statistics_alone() -> None:
    net = network()
    net.train()
    net[2].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    p = bnn.predict(net, images(4), samples=2)
    assert [m.training for m in net] == [True, True, False, True, True]
    assert not p.probs.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


class TwoInputs(nn.Module):
    """Takes two tensors and returns a tuple with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.a(left) + self.b(right), {"left": self.a(left)}


@pytest.mark.parametrize("batch_size", [None, 2])
def test_tuples_and_dicts_in_and_out(batch_size: int | None) -> None:
    net = TwoInputs()
    bnn.bayesianize_(net, "inducing", **SIZES)
    left, right = torch.randn(5, 2), torch.randn(5, 4)
    for x in ((left, right), {"left": left, "right": right}):
        total, rest = bnn.draws(net, x, samples=3, batch_size=batch_size)
        assert total.shape == rest["left"].shape == (3, 5, 3)
    with pytest.raises(TypeError, match=r"use bnn\.draws"):
        bnn.predict(net, (left, right), samples=2)


def test_partly_converted_networks_work() -> None:
    net = network()
    plain = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    bnn.bayesianize_(plain, {"2": "fcg"})
    assert bnn.predict(plain, torch.randn(3, 16), samples=4).probs.shape == (3, 2)
    assert bnn.predict(net, images(3), samples=1).epistemic.max() == 0


def test_mistakes() -> None:
    net = network()
    with pytest.raises(ValueError, match="samples must be an integer >= 0"):
        bnn.draws(net, images(1), samples=-1)
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1"):
        bnn.draws(net, images(1), samples=1, batch_size=0)
    with pytest.raises(ValueError, match="convert it with"):
        bnn.draws(nn.Linear(2, 2), torch.randn(1, 2))
    with pytest.raises(TypeError, match="`predictive` method"):
        bnn.predict(net, images(1), likelihood=F.cross_entropy)
    with pytest.raises(ValueError, match="unknown likelihood"):
        bnn.predict(net, images(1), likelihood="categorial")


def test_set_sampling() -> None:
    net = network()
    assert {net[i].options.sampling for i in (0, 4)} == {"auto"}
    for sampling in ("local", "auto", "weight"):
        bnn.set_sampling_(net, sampling)
        assert {net[i].options.sampling for i in (0, 4)} == {sampling}
    with pytest.raises(ValueError, match="unknown sampling 'quick'; expected one of"):
        bnn.set_sampling_(net, "quick")
    assert {net[i].options.sampling for i in (0, 4)} == {"weight"}
    with pytest.raises(ValueError, match="no layer of this network"):
        bnn.set_sampling_(network("fcg"), "weight")
    both = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    bnn.bayesianize_(both, {"0": "inducing", "1": "ffg", "2": "fcg"}, **SIZES)
    bnn.set_sampling_(both, "local")  # of all layers that have it
    assert [layer.options.sampling for layer in both[:2]] == ["local", "local"]


def test_regression_without_gradients_and_with_the_learned_noise() -> None:
    net, x = nn.Linear(3, 1), torch.randn(4, 3)
    bnn.bayesianize_(net, "inducing", **SIZES)
    elbo = bnn.ELBO(net, num_data=4, likelihood=bnn.likelihoods.Gaussian(sd=0.05))
    p = bnn.predict(net, x, samples=3, likelihood=elbo.likelihood)
    assert not p.total.requires_grad
    assert torch.allclose(p.aleatoric, torch.tensor(0.0025))
    with pytest.warns(UserWarning, match=r"pass the trained one, elbo\.likelihood"):
        bnn.predict(net, x, samples=3, likelihood="gaussian")


def test_one_output_is_no_class_probability() -> None:
    net = nn.Linear(3, 1)
    bnn.bayesianize_(net, "inducing", **SIZES)
    with pytest.raises(ValueError, match="C >= 2 classes"):
        bnn.predict(net, torch.randn(4, 3), samples=2)


def test_inputs_of_another_length_go_along_whole() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x) * scale

    net = nn.Sequential()
    net.add_module("inner", nn.Linear(3, 2))
    bnn.bayesianize_(net, "inducing", sampling="weight", **SIZES)  # else noise of single inputs depends on the batch
    scaled = Scaled(2, 2)
    net.forward = lambda x, scale: scaled(net.inner(x), scale)
    x, scale = torch.randn(5, 3), torch.tensor([1.0, 2.0])
    seeded = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    whole = bnn.draws(net, (x, scale), samples=2, generator=seeded())
    assert torch.allclose(bnn.draws(net, (x, scale), samples=2, generator=seeded(), batch_size=2), whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own: seeded generators break its graphs
@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_compiled_networks(q: str) -> None:
    net, x = network(q_inducing=q).eval(), images(4)
    compiled = torch.compile(net, backend="eager")
    seeded = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    assert torch.allclose(bnn.draws(compiled, x, 3, seeded()), bnn.draws(net, x, 3, seeded()), atol=1e-6)
    assert bnn.predict(compiled, x, samples=4).probs.shape == (4, 3)
    elbo = bnn.ELBO(compiled, num_data=4, likelihood="categorical", samples=2)
    assert torch.isfinite(elbo(x, torch.tensor([0, 1, 2, 0])).loss)
    with bnn.frozen_draw(compiled, 5):
        frozen = compiled(x)
        assert torch.equal(compiled(x), frozen)
    with bnn.frozen_draw(net, 5):
        assert torch.allclose(net(x), frozen, atol=1e-6)


def test_what_is_no_network_is_named() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="works in place and returns None"):
        bnn.predict(bnn.bayesianize_(net, "ffg"), torch.randn(1, 2))
    with pytest.raises(TypeError, match="the class Linear: make an object of it"):
        bnn.bayesianize_(nn.Linear, "ffg")
    with pytest.raises(TypeError, match="expected a network"):
        bnn.save(net.state_dict(), "net.safetensors")
    with pytest.raises(TypeError, match="an integer seed"), bnn.frozen_draw(net, "a"):
        pass
