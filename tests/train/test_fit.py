"""`bnn.fit` against loops written out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, plain_net, run, same, values
from torch import nn, optim

import bnn
from bnn._common.seeds import derived
from bnn.data.batches import Place
from bnn.train.loop import STEP
from bnn.train.schedule import Schedule

# ---- the loop --------------------------------------------------------------------------------------------------------


def by_hand(net: nn.Module, optimiser: optim.Optimizer, lr: float, clip: float | None, epochs: int = 4) -> list[float]:
    """Cross-entropy in batches of 10, the rate divided by 5 after epochs 1 and 3; returns the mean loss by epoch."""
    x, y = blobs(43)
    means = []
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = lr * 0.2 ** ((epoch >= 1) + (epoch >= 3))
        losses = []
        for indices, _ in Place(7, epoch).parts(43, 10):
            loss = F.cross_entropy(net(x[indices]), y[indices], reduction="none").mean()
            optimiser.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimiser.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    return means


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_plain_network_trains_bit_for_bit_as_by_hand(name: str, clip: float | None) -> None:
    expected, net = plain_net(), plain_net()
    if name == "adam":
        optimiser: optim.Optimizer = optim.Adam(expected.parameters(), weight_decay=0.01)
    else:
        optimiser = optim.SGD(expected.parameters(), lr=1, momentum=0.8, weight_decay=0.01)
    means = by_hand(expected, optimiser, 0.05, clip)
    history = run(net, blobs(43), epochs=4, optimiser=name, lr=0.05, momentum=0.8, weight_decay=0.01, milestones=[1, 3],
                  decay=0.2, clip=clip)  # fmt: skip
    assert same(net, expected)
    assert history.column("data") == pytest.approx(means, rel=1e-6)
    assert history.column("lr") == pytest.approx([0.05, 0.01, 0.01, 0.002])
    assert means[-1] < 0.9 * means[0]


def test_a_bayesian_network_trains_bit_for_bit_as_by_hand() -> None:
    """Three rates, annealing within epochs, noise from the place in the run."""
    expected, net = bayesian_net(init_lamda=0.1), bayesian_net(init_lamda=0.1)
    x, y = blobs(43)
    elbo = bnn.ELBO(expected, 43, "categorical", samples=2, warmup=0.5, anneal=1, kl_weight=0.3)
    optimiser = optim.Adam(bnn.parameter_groups(elbo, 0.01, scales=5, u=2))
    scales = []
    for epoch in range(2):
        for step, (indices, _) in enumerate(Place(7, epoch).parts(43, 10)):
            torch.manual_seed(derived(7, STEP, epoch, step, 0))
            out = elbo(x[indices], y[indices], epoch=epoch + step / 5)
            optimiser.zero_grad()
            out.loss.backward()
            optimiser.step()
            scales.append(out.kl_scale)
    assert scales == pytest.approx(
        [0, 0, 0, 0.3 * 0.1, 0.3 * 0.3, 0.3 * 0.5, 0.3 * 0.7, 0.3 * 0.9, 0.3, 0.3], abs=1e-12
    )
    run(net, (x, y), lr=0.01, scale_rate=5, u_rate=2, samples=2, warmup=0.5, anneal=1, kl_weight=0.3, sampling="auto",
        refresh_batchnorm=False)  # fmt: skip
    assert same(net, expected)


def test_every_step_knows_how_far_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scales, inner = [], bnn.ELBO.with_outputs

    def spy(self: bnn.ELBO, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, *args, **kwargs)
        scales.append(result[0].kl_scale)
        return result

    monkeypatch.setattr(bnn.ELBO, "with_outputs", spy)
    history = run(bayesian_net(), epochs=3, warmup=1, anneal=1, kl_weight=2.0)
    assert scales == pytest.approx([0, 0, 0, 0, 2 / 3, 4 / 3, 2, 2, 2], abs=1e-12)
    assert history.column("kl_scale") == [0, 0, 2]


def test_rates_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: dict[str, list[tuple[str, float]]] = {}
    inner = bnn.Schedule.optimiser_of

    def spy(self: bnn.Schedule, network: nn.Module) -> Any:
        optimiser = inner(self, network)
        groups[str(self.scale_rate)] = [(group["name"], group["lr"]) for group in optimiser.param_groups]
        return optimiser

    monkeypatch.setattr(bnn.Schedule, "optimiser_of", spy)
    run(bayesian_net(), lr=0.01, scale_rate=None)
    run(bayesian_net(), lr=0.01, scale_rate=3.0)
    assert groups["None"] == [("all", 0.01)]
    assert [name for name, _ in groups["3.0"]] == ["rest", "scales", "u of net.0", "u of net.3"]
    assert dict(groups["3.0"])["scales"] == pytest.approx(0.03)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_members_of_an_ensemble_train_as_if_alone(clip: float | None) -> None:
    """Sums and clipping by member: nothing of one reaches another."""
    nets = [plain_net(norm=False), plain_net(norm=False)]
    with torch.no_grad():
        nets[1][0].weight += 1
    alone = [nn.Sequential(*(layer for layer in net)) for net in map(_copy, nets)]
    for net in alone:
        run(net, optimiser="sgd", lr=0.1, clip=clip)
    run(bnn.Ensemble(nets), optimiser="sgd", lr=0.1, clip=clip)
    for one, other in zip(nets, alone, strict=True):
        for name, value in values(other).items():
            assert torch.allclose(one.state_dict()[name], value, atol=1e-6), name


def _copy(net: nn.Sequential) -> nn.Sequential:
    copy = plain_net(norm=False)
    copy.load_state_dict(net.state_dict())
    return copy


def test_noise_of_a_regression_is_learned_and_handed_back() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(200, 1, generator=generator)
    net = plain_net(norm=False, out=1)
    history = run(net, (x, y), epochs=25, lr=0.03, batch_size=50, validation=(x, y))
    assert isinstance(history.likelihood, bnn.likelihoods.Gaussian)
    assert history.likelihood.sd().item() == pytest.approx(0.3, abs=0.06)
    rmse = (net(x) - y).square().mean().sqrt().item()
    assert history.last["validation_rmse"] == pytest.approx(rmse, rel=1e-5)
    assert history.last["rmse"] == pytest.approx(rmse, rel=0.1)
    assert "accuracy" not in history.last


# ---- precision and a Fabric of one's own -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*bf16.*:UserWarning")
def test_mixed_precision_trains() -> None:
    net = bayesian_net()
    history = run(net, blobs(100), epochs=4, lr=0.005, precision="bf16-mixed")
    data = history.column("data")
    assert all(map(math.isfinite, data))
    assert data[-1] < 0.95 * data[0]
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float}
    full = bayesian_net()
    expected = run(full, blobs(100), epochs=4, lr=0.005).column("data")
    assert data == pytest.approx(expected, rel=0.02)
    assert data != expected


def test_a_fabric_of_ones_own_writes_our_checkpoints_too(tmp_path: Path) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    before = fabric.strategy.checkpoint_io
    expected, net = plain_net(), plain_net()
    run(expected, epochs=2)
    run(plain_net(), epochs=1, out=tmp_path, fabric=fabric)
    assert bnn.train.checkpoint.read_checkpoint(str(tmp_path / "checkpoint.safetensors"))["run"]["epoch"] == 1
    run(net, epochs=2, out=tmp_path, fabric=fabric)
    assert same(net, expected)
    assert fabric.strategy.checkpoint_io is before


def test_rates_fall_with_every_batch() -> None:
    """So that a run of one epoch decays, too; milestones may be fractions of an epoch."""
    schedule = Schedule(epochs=2, cosine=True, milestones=[0.5, 1], decay=0.1)
    for done, expected in ((0.0, 1.0), (0.25, 0.961940), (0.5, 0.0853553), (1.0, 0.005), (1.5, 0.00146447)):
        assert schedule.rate(done) == pytest.approx(expected, rel=1e-5)
    rates: list[float] = []
    net = plain_net()

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def watched(self: Schedule, elbo: nn.Module) -> optim.Optimizer:
        return Watched([{"params": list(elbo.parameters()), "initial_lr": self.lr}], lr=self.lr)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schedule, "optimiser_of", watched)
        run(net, blobs(40), epochs=1, lr=0.1, cosine=True)
    assert rates == pytest.approx([0.1 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)])
