"""The Lightning module does what a loop of one's own over `bnn.ELBO` does."""

from __future__ import annotations

import types
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers import SIZES
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn._engine.temperature import set_temperature_, temperature_of
from bnn.lightning import BayesianModule
from bnn.train import Schedule

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    bnn.bayesianize_(net, "inducing", max_lamda=0.1, sampling="weight", **SIZES)
    return net


def toy(n: int = 20) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


def trainer(epochs: int = 2, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


class Steps(pl.Callback):
    """Seeds every step by its number, and keeps what it logged."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        torch.manual_seed(1000 + trainer.global_step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.logged.append({name: float(value) for name, value in trainer.logged_metrics.items()})


def test_training_is_the_loop_of_ones_own() -> None:
    data = toy()
    schedule = {"lr": 0.01, "milestones": (1,), "decay": 0.5, "warmup": 0.5, "anneal": 1, "samples": 2}
    module, steps = BayesianModule(network(), len(data), **schedule), Steps()
    trainer(callbacks=[steps]).fit(module, DataLoader(data, batch_size=5))

    elbo = bnn.ELBO(network(), len(data), "categorical", samples=2, warmup=0.5, anneal=1)
    optimiser = torch.optim.Adam(bnn.parameter_groups(elbo, lr=0.01))
    starts = [group["lr"] for group in optimiser.param_groups]
    for step in range(8):
        epoch, batch = divmod(step, 4)
        for group, start in zip(optimiser.param_groups, starts, strict=True):
            group["lr"] = start * (0.5 if epoch else 1.0)
        torch.manual_seed(1000 + step)
        result = elbo(*data[5 * batch : 5 * batch + 5], epoch=epoch + batch / 4)
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        wanted = {
            name: pytest.approx(float(torch.as_tensor(value).detach()), rel=1e-5)
            for name, value in result._asdict().items()
        }
        assert steps.logged[step] == wanted
    assert [round(logged["kl_scale"], 2) for logged in steps.logged] == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1]
    for got, want in zip(module.parameters(), elbo.parameters(), strict=True):
        torch.testing.assert_close(got, want)


def test_held_out_scores_are_those_of_all_data_at_once() -> None:
    data = toy(30)
    module = BayesianModule(network(), 30, validation_samples=6)
    loader = DataLoader(data, batch_size=7)
    (scores,) = trainer().validate(module, loader, verbose=False)
    outputs = bnn.draws(module.net, data.tensors[0], 6, torch.Generator().manual_seed(0))
    probs, y = outputs.softmax(2).mean(0).double().detach().numpy(), data.tensors[1].numpy()
    probs /= probs.sum(1, keepdims=True)
    assert scores["validation_nll"] == pytest.approx(bnn.metrics.nll(probs, y), rel=1e-5)
    assert scores["validation_accuracy"] == pytest.approx(bnn.metrics.accuracy(probs, y))
    assert scores["validation_ece"] == pytest.approx(bnn.metrics.ece(probs, y, 15), rel=1e-4)
    (tested,) = trainer().test(module, loader, verbose=False)
    assert tested["test_nll"] == scores["validation_nll"]


def test_regression_scores() -> None:
    x = torch.randn(12, 4)
    net = nn.Linear(4, 1)
    module = BayesianModule(net, 12, bnn.likelihoods.Gaussian(0.5))
    (scores,) = trainer().test(module, DataLoader(TensorDataset(x, torch.zeros(12, 1)), batch_size=5), verbose=False)
    mean = net(x).detach().double().numpy()
    assert scores["test_rmse"] == pytest.approx(float(np.sqrt(np.square(mean).mean())), rel=1e-5)
    assert scores["test_nll"] == pytest.approx(
        bnn.metrics.gaussian_nll(mean, 0.5 * np.ones((12, 1)), np.zeros((12, 1)))
    )


@pytest.mark.parametrize("with_targets", [True, False])
def test_predictions_are_those_of_predict(with_targets: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3))
    data = toy(6) if with_targets else TensorDataset(toy(6).tensors[0])
    first, second = trainer().predict(BayesianModule(net, 6), DataLoader(data, batch_size=4))  # type: ignore[misc]
    assert isinstance(first, bnn.likelihoods.ClassPrediction)
    probs = torch.cat([first.probs, second.probs])
    torch.testing.assert_close(probs, net(data.tensors[0]).softmax(1).detach())


def gradient(loss: Tensor, parameters: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(parameters)))


def attached(module: BayesianModule, **trainer: Any) -> BayesianModule:
    """With a Trainer that only answers questions."""
    module._trainer = types.SimpleNamespace(num_training_batches=1, world_size=1, current_epoch=0, **trainer)  # type: ignore[assignment]
    module.log_dict = lambda *args, **kwargs: None  # type: ignore[method-assign]
    return module


def test_members_of_an_ensemble_train_as_if_alone() -> None:
    torch.manual_seed(0)
    ensemble = bnn.Ensemble(nn.Linear(4, 3), members=3)
    x, y = toy()[:5]
    module = attached(BayesianModule(ensemble, 20))
    got = gradient(module.training_step((x, y), 0), module.parameters())
    alone = [bnn.ELBO(member, 20, "categorical") for member in ensemble.members]
    want = [part for elbo in alone for part in gradient(elbo(x, y).loss, elbo.parameters())]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_the_schedule_clips() -> None:
    data, net = toy(), network()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    module = BayesianModule(net, len(data), optimiser="sgd", lr=1.0, scale_rate=None, clip=1e-3)
    trainer(epochs=1).fit(module, DataLoader(data, batch_size=20))
    moved = torch.stack([(p.detach() - b).norm() for p, b in zip(net.parameters(), before, strict=True)]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_cosine_ends_with_the_trainer() -> None:
    data = toy()
    module = BayesianModule(network(), len(data), schedule=Schedule(cosine=True, epochs=77, lr=0.1, scale_rate=None))
    rates: list[float] = []
    watch = pl.callbacks.LambdaCallback(
        on_train_epoch_start=lambda trainer, module: rates.append(trainer.optimizers[0].param_groups[0]["lr"])
    )
    trainer(epochs=4, callbacks=[watch]).fit(module, DataLoader(data, batch_size=20))
    assert rates == pytest.approx([0.1 * 0.5 * (1 + np.cos(np.pi * epoch / 4)) for epoch in range(4)])


@pytest.mark.parametrize("together", [1, 2])
def test_rates_change_with_every_step(together: int) -> None:
    """Also where several batches make a step, and within an epoch: short runs decay."""
    data, rates = toy(), []
    module = BayesianModule(network(), len(data), cosine=True, lr=0.1, scale_rate=None)
    watch = pl.callbacks.LambdaCallback(
        on_before_optimizer_step=lambda trainer, module, optimiser: rates.append(optimiser.param_groups[0]["lr"])
    )
    fitting = trainer(callbacks=[watch], accumulate_grad_batches=together)
    fitting.fit(module, DataLoader(data, batch_size=5))
    steps = 8 // together
    assert rates == pytest.approx([0.05 * (1 + np.cos(np.pi * step / steps)) for step in range(steps)])


def test_processes_seeded_alike_draw_different_noise() -> None:
    noise = []
    for rank in range(2):
        torch.manual_seed(5)
        module = attached(BayesianModule(network(), 20), global_rank=rank)
        module.trainer.world_size = 2  # type: ignore[misc]
        torch.manual_seed(5)
        module.on_train_start()
        noise.append(torch.randn(3))
    assert not torch.equal(*noise)


def test_a_temperature_counts_in_scores_and_training_takes_it_off() -> None:
    net, x, y = network(), torch.randn(6, 4), torch.randint(3, (6,))
    module = attached(BayesianModule(net, 20, validation_samples=3))
    found = []
    for t in (1.0, 2.0):
        set_temperature_(net, t)
        module.on_test_epoch_start()
        with torch.no_grad():
            module.test_step((x, y), 0)
            outputs = bnn.draws(net, x, 3, torch.Generator().manual_seed(0))
        found.append(module._scores.summary()["nll"])
        probs = (outputs.double() / t).softmax(2).mean(0)[torch.arange(6), y]
        assert found[-1] == pytest.approx(float(-probs.log().mean()), rel=1e-5)
    assert found[0] != pytest.approx(found[1], rel=1e-3)
    with pytest.warns(UserWarning, match="it is trained now"):
        module.on_train_start()
    assert temperature_of(net) == 1


@pytest.mark.parametrize("name", ["epochs", "batch_size", "patience", "refresh_batchnorm", "sampling"])
def test_what_is_the_trainers_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is the Trainer's business here: use "):
        BayesianModule(network(), 20, **{name: 3})


def test_other_errors() -> None:
    net = network()
    with pytest.raises(ValueError, match="patience is the Trainer's business"):
        BayesianModule(net, 20, schedule=Schedule(patience=2))
    with pytest.raises(ValueError, match=r"sampling is the Trainer's business here: use bnn\.set_sampling_"):
        BayesianModule(net, 20, schedule=Schedule(sampling="local"))
    with pytest.raises(TypeError, match="unknown option 'lrr'"):
        BayesianModule(net, 20, lrr=1)
    with pytest.raises(TypeError, match=r"must be a bnn\.train\.Schedule, got dict"):
        BayesianModule(net, 20, schedule={"lr": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a batch must be \(inputs, targets\), got Tensor"):
        attached(BayesianModule(net, 20)).training_step(torch.zeros(2, 4), 0)


@pytest.mark.parametrize("validated", [True, False])
def test_noise_is_settled_when_fitting_ends(validated: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    data, held_out = TensorDataset(x, 3 * x[:, :1]), TensorDataset(x, 3 * x[:, :1] + torch.randn(60, 1))
    net = nn.Linear(4, 1)
    module = BayesianModule(net, 60, bnn.likelihoods.Gaussian(tails=False), lr=1e-3)
    loaders = [DataLoader(one, batch_size=20) for one in ([data, held_out] if validated else [data])]
    trainer(1).fit(module, *loaders)
    y = (held_out if validated else data).tensors[1]
    expected = float((net(x) - y).detach().square().mean().sqrt())
    assert module.elbo.likelihood.sd().item() == pytest.approx(expected, rel=1e-5)
    assert module.noise is not None
    assert module.noise["data"] == ("validation" if validated else "training")
    assert module.noise["before"]["sd"][0] == pytest.approx(3, rel=0.3)  # it began at the residuals, not at 1


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_rows_kept_out_of_the_loaders_make_a_guarantee(likelihood: str) -> None:
    """200 of them, 2000 new ones: coverage is Beta(181, 20), of mean 0.9005 and sd 0.021, and counted on 2000."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2500, 4, generator=generator)
    noisy = x[:, :1] + (0.2 + x[:, 1:2].abs()) * torch.randn(2500, 1, generator=generator)
    y = noisy if likelihood == "gaussian" else (noisy[:, 0] > 0).long() + (noisy[:, 0] > 1).long()
    train, validation, aside, new = torch.arange(2500).split([200, 100, 200, 2000])
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1 if likelihood == "gaussian" else 3))
    bnn.bayesianize_(net, "ffg-u")
    module = BayesianModule(net, num_data=len(train), likelihood=likelihood, lr=1e-2)
    loaders = [DataLoader(TensorDataset(x[rows], y[rows]), batch_size=50) for rows in (train, validation)]
    trainer().fit(module, *loaders)

    def predict(rows: Tensor) -> Any:
        seeded = torch.Generator().manual_seed(0)
        return bnn.predict(module.net, x[rows], samples=5, likelihood=module.elbo.likelihood, generator=seeded)

    guarantee = bnn.conformal.calibrate(predict(aside), y[aside])
    if likelihood == "gaussian":
        lower, upper = guarantee.intervals(predict(new), level=0.9)
        inside = (lower <= y[new].numpy()) & (y[new].numpy() <= upper)
    else:
        inside = guarantee.sets(predict(new), level=0.9)[np.arange(2000), y[new].numpy()]
    assert abs(inside.mean() - 0.9005) < 4 * (0.021**2 + 0.09 / 2000) ** 0.5


def test_noise_is_not_settled_on_a_handful() -> None:
    """With 29 validation inputs it is that of the training data, as in `bnn.fit`; with 30 that of validation."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    data, net = TensorDataset(x, 3 * x[:, :1]), nn.Linear(4, 1)
    for inputs, expected in ((29, "training"), (30, "validation")):
        module = BayesianModule(net, 60, "gaussian", lr=1e-3)
        held_out = TensorDataset(x[:inputs], torch.randn(inputs, 1))
        trainer(1).fit(module, DataLoader(data, batch_size=20), DataLoader(held_out, batch_size=20))
        assert module.noise is not None
        assert module.noise["data"] == expected
