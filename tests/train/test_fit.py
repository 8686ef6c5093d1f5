"""`bnn.fit` against loops written out by hand."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, plain_net, run, same, values
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bnn
from bnn.data.dataset import Data, Part
from bnn.files import FileFormatError
from bnn.train.batches import Place
from bnn.train.monitor import Monitor
from bnn.train.run import SCORE, STEP, DivergenceError
from bnn.train.seeds import derived

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
    run(net, (x, y), lr=0.01, scale_rate=5, u_rate=2, samples=2, warmup=0.5, anneal=1, kl_weight=0.3,
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
    x = torch.randn(400, 4, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(400, 1, generator=generator)
    net = plain_net(norm=False, out=1)
    history = run(net, (x, y), epochs=25, lr=0.01, batch_size=50, validation=(x, y))
    assert isinstance(history.likelihood, bnn.likelihoods.Gaussian)
    assert history.likelihood.sd().item() == pytest.approx(0.3, abs=0.06)
    rmse = (net(x) - y).square().mean().sqrt().item()
    assert history.last["validation_rmse"] == pytest.approx(rmse, rel=1e-5)
    assert history.last["rmse"] == pytest.approx(rmse, rel=0.1)
    assert "accuracy" not in history.last


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_the_history_of_a_run() -> None:
    history = run(bayesian_net(), validation=blobs(20, seed=2))
    assert list(history.last) == [
        *("epoch", "step", "lr", "kl_scale", "data", "kl_u", "kl_lamda", "accuracy", "ece"),
        *("validation_nll", "validation_accuracy", "validation_ece", "seconds"),
    ]
    assert (history.column("epoch"), history.column("step")) == ([0, 1], [3, 3])
    assert (history.stopped, history.best, history.out) == ("finished", None, None)
    assert isinstance(history.likelihood, bnn.likelihoods.Categorical)
    assert history.column("nothing") == [None, None]


def test_accuracy_and_ece_of_the_training_steps() -> None:
    """At a rate of next to nothing the network stands still, so that one pass over all inputs tells them."""
    net = plain_net(norm=False)
    x, y = blobs(60)
    history = run(net, (x, y), epochs=1, optimiser="sgd", lr=1e-30)
    probs = net(x).softmax(1)
    p, guess = probs.max(1)
    edges = torch.linspace(0, 1, 16)
    rows = [(p > low) & (p <= high) for low, high in itertools.pairwise(edges)]
    ece = sum((p[row].sum() - (guess == y)[row].sum()).abs().item() for row in rows) / 60
    assert history.last["accuracy"] == pytest.approx((guess == y).float().mean().item())
    assert history.last["ece"] == pytest.approx(ece, abs=1e-6)


@pytest.mark.parametrize("kind", ["plain", "bayesian", "ensemble", "compressed"])
def test_validation_nll_is_that_of_the_posterior_predictive(kind: str) -> None:
    x, y = blobs(45, seed=2)
    net: nn.Module = bayesian_net(norm=False, init_lamda=0.2) if kind == "bayesian" else plain_net(norm=False)
    if kind in ("ensemble", "compressed"):
        net = bnn.Ensemble(net, members=3)
    if kind == "compressed":
        bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, init_lamda=0.2)
    history = run(net, validation=(x, y), validation_samples=12)
    generator = torch.Generator().manual_seed(derived(7, SCORE, 1))
    samples = {"plain": 0, "ensemble": None}.get(kind, 12)
    net.eval()
    with torch.no_grad():
        probs = bnn.draws(net, x, samples, generator).double().softmax(2).mean(0)
    assert len(probs) == 45
    nll = -probs[torch.arange(45), y].log().mean().item()
    assert history.last["validation_nll"] == pytest.approx(nll, rel=1e-6)
    assert history.last["validation_accuracy"] == pytest.approx((probs.argmax(1) == y).double().mean().item())


@pytest.mark.parametrize("form", ["Data", "Part", "Dataset", "loader", "arrays"])
def test_validation_data_of_any_form_score_the_same(form: str) -> None:
    x, y = blobs(700, seed=2)
    part = Part(x, y)
    forms: dict[str, Any] = {
        "Data": Data("toy", "classification", part, validation=part, classes=("a", "b", "c")),
        "Part": part,
        "Dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=500),
        "arrays": (x.numpy(), y.numpy()),
    }
    net = bayesian_net()
    device, likelihood = torch.device("cpu"), bnn.likelihoods.Categorical()
    expected = Monitor((x, y), likelihood, 5).score(net, device, 3)
    assert Monitor(forms[form], likelihood, 5).score(net, device, 3) == expected
    assert Monitor(forms[form], likelihood, 5).score(net, device, 4) != expected


def test_metrics_are_lines_of_json_and_equal_the_history(tmp_path: Path) -> None:
    history = run(bayesian_net(), validation=blobs(20), out=tmp_path)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == history.epochs
    assert text.endswith("\n")


def test_metrics_are_put_right_when_a_run_goes_on(tmp_path: Path) -> None:
    run(bayesian_net(), out=tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"epoch": 2, "da')  # killed while writing
    history = run(bayesian_net(), epochs=3, out=tmp_path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == history.epochs
    path.unlink()
    run(bayesian_net(), epochs=3, out=tmp_path)
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.slow
def test_tensorboard_holds_the_same_numbers(tmp_path: Path) -> None:
    run(bayesian_net(), out=tmp_path, tensorboard=True, epochs=1)
    history = run(bayesian_net(), out=tmp_path, tensorboard=True, epochs=2)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert {"data", "kl_u", "accuracy", "lr"} <= set(board.Tags()["scalars"])
    events = board.Scalars("data")
    assert [event.step for event in events] == [0, 1]
    assert [event.value for event in events] == pytest.approx(history.column("data"), rel=1e-6)


def test_progress_is_a_line_per_epoch_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    history = run(bayesian_net(), validation=blobs(20), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    last = history.last
    assert f"data {last['data']:.3f}" in lines[1]
    assert f"acc {last['accuracy']:.1%}" in lines[1]
    assert f"val nll {last['validation_nll']:.3f}" in lines[1]
    run(bayesian_net(), progress=None)
    run(bayesian_net(), progress=False)
    assert capsys.readouterr() == ("", "")


# ---- early stopping --------------------------------------------------------------------------------------------------


def test_patience_keeps_the_parameters_of_the_best_epoch() -> None:
    """Random labels: validation soon grows worse."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator)
    validation = (torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator))
    net = plain_net()
    history = run(net, (x, y), validation=validation, epochs=40, lr=0.02, patience=3)
    nll = history.column("validation_nll")
    assert history.best == nll.index(min(nll))
    assert len(nll) == history.best + 4 < 40
    assert history.stopped == "patience"
    score = Monitor(validation, history.likelihood, 1).score(net, torch.device("cpu"), 0)
    assert score["nll"] == min(nll) < nll[-1]


def test_without_patience_the_last_parameters_stay() -> None:
    validation = blobs(20, seed=2)
    net = plain_net()
    history = run(net, validation=validation, epochs=5, lr=0.3)
    score = Monitor(validation, history.likelihood, 1).score(net, torch.device("cpu"), 0)
    assert score["nll"] == history.last["validation_nll"] != min(history.column("validation_nll"))


def test_a_run_that_goes_on_without_patience_ends_with_its_last_parameters(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": blobs(20, seed=2), "lr": 0.3}
    expected = plain_net()
    run(expected, epochs=3, **options)
    run(plain_net(), epochs=2, patience=5, out=tmp_path, **options)
    net = plain_net()
    assert run(net, epochs=3, out=tmp_path, **options).best is None
    assert same(net, expected)


def test_validation_that_is_not_a_number_is_never_the_best() -> None:
    x, y = blobs(20)
    x[0, 0] = math.nan
    net, expected = plain_net(), plain_net()
    history = run(net, validation=(x, y), epochs=3, patience=2)
    run(expected, epochs=3)
    assert history.best is None
    assert same(net, expected)


def test_the_best_epoch_lost_is_an_error(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": blobs(20, seed=2), "patience": 3, "out": tmp_path}
    run(plain_net(), **options)
    for path in tmp_path.glob("best*"):
        path.unlink()
    with pytest.raises(FileFormatError, match=r"best\.safetensors, the parameters of epoch ., is missing"):
        run(plain_net(), epochs=3, **options)


# ---- randomness and modes --------------------------------------------------------------------------------------------


def test_global_generators_and_modes_are_left_as_they_were() -> None:
    net = bayesian_net()
    net[0].train()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    run(net, validation=blobs(20))
    after = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert [module.training for module in net.modules()] == modes
    assert not torch.is_inference_mode_enabled()


def test_the_seed_sets_everything() -> None:
    nets = [bayesian_net(init_lamda=0.2) for _ in range(4)]
    for net, seed, around in zip(nets, [1, 1, 2, -1], [3, 4, 3, 3], strict=True):
        torch.manual_seed(around)
        run(net, seed=seed)
    assert same(nets[0], nets[1])
    assert not same(nets[0], nets[2])
    assert not same(nets[2], nets[3])


def test_without_a_seed_one_comes_from_the_global_generator() -> None:
    nets = [bayesian_net() for _ in range(3)]
    for net, around in zip(nets, [3, 3, 4], strict=True):
        torch.manual_seed(around)
        run(net, seed=None)
    assert same(nets[0], nets[1])
    assert not same(nets[0], nets[2])


def test_the_default_device_does_not_matter() -> None:
    expected, net, data = bayesian_net(), bayesian_net(), blobs()
    run(expected, data, validation=data)
    with torch.device("meta"):  # whatever is made there by mistake has no values
        run(net, data, validation=data)
    assert same(net, expected)


# ---- divergence ------------------------------------------------------------------------------------------------------


def bad_inputs() -> tuple[Tensor, Tensor]:
    """The fourth step of the first epoch meets NaN."""
    x, y = blobs(60)
    x[Place(7, 0).parts(60, 10)[3][0][2]] = math.nan
    return x, y


@pytest.mark.parametrize("make", [plain_net, bayesian_net])
def test_a_loss_that_is_not_a_number_leaves_the_state_before_that_step(make: Any, tmp_path: Path) -> None:
    """BatchNorm's statistics included, which the forward pass has seen the NaN in."""
    net, expected, (x, y) = make(), make(), bad_inputs()
    elbo = bnn.ELBO(expected, 60, "categorical")
    optimiser = optim.Adam(bnn.parameter_groups(elbo, 1e-3))
    for step in range(3):
        indices = Place(7, 0).parts(60, 10)[step][0]
        torch.manual_seed(derived(7, STEP, 0, step, 0))
        optimiser.zero_grad()
        elbo(x[indices], y[indices]).loss.backward()
        optimiser.step()
    with pytest.raises(DivergenceError, match=r"the loss is nan in epoch 0, step 3 .*NaN in the inputs"):
        run(net, (x, y), out=tmp_path, save_every=0)
    assert same(net, expected)
    again = make()
    with pytest.raises(DivergenceError, match=r"the last checkpoint in .* is intact"):
        run(again, (x, y), out=tmp_path)
    assert same(again, expected)  # it went on from a good checkpoint, and met the same input


def test_a_gradient_that_is_not_a_number_is_found_before_the_step() -> None:
    class Root(nn.Module):
        """sqrt(0 * x) has no gradient."""

        def forward(self, x: Tensor) -> Tensor:
            return x + (0 * x).sqrt()

    net = nn.Sequential(plain_net(), Root())
    before = values(net)
    with pytest.raises(DivergenceError, match="the gradient is nan in epoch 0, step 0"):
        run(net)
    assert same(net, before)


@pytest.mark.parametrize(("optimiser", "lr"), [("sgd", 1e12), ("sgd", 1e37)])
@pytest.mark.parametrize("make", [plain_net, bayesian_net])
def test_a_rate_too_large_ends_in_an_error_that_says_so(make: Any, optimiser: str, lr: float, tmp_path: Path) -> None:
    net = make(norm=False)
    with pytest.raises(DivergenceError, match=r"smaller lr|lower the learning rate"):
        run(net, epochs=40, optimiser=optimiser, lr=lr, out=tmp_path, save_every=0)
    if (tmp_path / "checkpoint.safetensors").exists():
        state = bnn.train.checkpoint.read_checkpoint(str(tmp_path / "checkpoint.safetensors"))
        assert all(bool(tensor.isfinite().all()) for tensor in state["objective"].values())


# ---- another run in the folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": plain_net}, "another network: 'elbo.net.0.weight' is missing"),
        ({"net": lambda: bayesian_net(norm=False)}, "another network: 'elbo.net.2.z_row' is missing"),
        (
            {"net": lambda: bayesian_net(max_lamda=0.05)},
            "its layers were converted with other options",
        ),
        ({"lr": 0.1}, "another run: lr: 0.001 then, 0.1 now"),
        ({"batch_size": 7}, "another run: batch_size: 10 then, 7 now"),
        ({"epochs": 1}, "another run: epochs: 2 behind it already, 1 now"),
        ({"likelihood": F.cross_entropy}, "another run: likelihood: Categorical then, cross_entropy now"),
        ({"data": blobs(31)}, "another run: data: .*'inputs': 30.* then, .*'inputs': 31.* now"),
        ({"data": blobs(30, seed=9)}, "another run: data: .*'checksums'"),
    ],
)
def test_a_checkpoint_of_another_run_is_an_error_and_nothing_changes(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run(bayesian_net(), out=tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    net = change.pop("net", bayesian_net)()
    before = values(net)
    with pytest.raises(ValueError, match=message):
        run(net, out=tmp_path, **change)
    assert same(net, before)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_other_frozen_parameters_are_another_network(tmp_path: Path) -> None:
    run(plain_net(), out=tmp_path)
    net = plain_net()
    net[0].weight.requires_grad_(False)
    before = values(net)
    with pytest.raises(ValueError, match="other parameters are frozen"):
        run(net, epochs=3, out=tmp_path)
    assert same(net, before)


def test_more_epochs_with_cosine_are_another_run(tmp_path: Path) -> None:
    run(plain_net(), cosine=True, out=tmp_path)
    with pytest.raises(ValueError, match="with cosine they set the rate of every epoch"):
        run(plain_net(), epochs=3, cosine=True, out=tmp_path)


def test_resume_false_refuses_a_folder_with_a_run(tmp_path: Path) -> None:
    run(plain_net(), out=tmp_path / "run", resume=False)
    with pytest.raises(FileExistsError, match="holds a run already"):
        run(plain_net(), out=tmp_path / "run", resume=False)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(FileExistsError, match="holds a run already"):  # the one before it is still there
        run(plain_net(), out=tmp_path / "run", resume=False)


def test_a_folder_that_is_a_file_or_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; expected a folder for the run"):
        run(plain_net(), out=tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="file"):
        run(plain_net(), out=tmp_path / "file" / "run")


def test_a_folder_that_cannot_be_written_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "x" in mode or "w" in mode:
            raise PermissionError(13, "Permission denied", file)
        return open(file, mode, *args, **kwargs)

    net = plain_net()
    before = values(net)
    monkeypatch.setattr("bnn.files.open", refuse, raising=False)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"cannot write to .*: Permission denied"):
        run(net, out=tmp_path)
    assert same(net, before)


# ---- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learning_rate": 1}, TypeError, "unknown option 'learning_rate'.*for 'bnn.fit'; expected some of"),
        ({"epoch": 1}, TypeError, r"unknown option 'epoch' \(did you mean 'epochs'\?\)"),
        ({"optimiser": "adamw"}, ValueError, r"unknown optimiser 'adamw'; expected one of \['adam', 'sgd'\]"),
        ({"epochs": 0}, ValueError, "epochs must be an integer >= 1, got 0"),
        ({"lr": math.nan}, ValueError, "lr must be a finite number > 0"),
        ({"milestones": [3, 1]}, ValueError, "milestones must rise"),
        ({"milestones": 3}, ValueError, "milestones must be a list"),
        ({"clip": 0}, ValueError, "clip must be a finite number > 0 or None"),
        ({"schedule": {"epochs": 3}}, TypeError, "schedule must be a bnn.train.Schedule, got dict"),
        ({"seed": 1.5}, ValueError, "seed must be an integer"),
        ({"seed": 2**63}, ValueError, "seed must be an integer"),
        ({"validation_samples": 0}, ValueError, "validation_samples must be an integer >= 1"),
        ({"save_every": -1}, ValueError, "save_every must be"),
        ({"patience": 2}, ValueError, "patience needs validation data"),
        ({"validation": Part(torch.zeros(3, 4))}, ValueError, "no targets"),
        ({"data": TensorDataset(*blobs())}, ValueError, 'pass likelihood="categorical"'),
        ({"likelihood": "categoricl"}, ValueError, "categoricl"),
    ],
)
def test_wrong_options_are_errors_that_help(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(plain_net(), **options)


def test_what_is_no_network_or_does_not_train_is_an_error() -> None:
    with pytest.raises(TypeError, match="expected a network"):
        run(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to optimise"):
        run(plain_net().requires_grad_(False))


def test_a_schedule_is_the_same_as_its_fields_and_keywords_come_on_top() -> None:
    nets = [plain_net() for _ in range(2)]
    run(nets[0], schedule=bnn.Schedule(epochs=9, batch_size=10, lr=0.1), epochs=3)
    run(nets[1], epochs=3, batch_size=10, lr=0.1)
    assert same(*nets)


def test_numbers_of_numpy_can_be_stored(tmp_path: Path) -> None:
    options: dict[str, Any] = {"milestones": list(np.arange(1, 3)), "lr": np.float32(0.5), "seed": np.int64(3)}
    run(plain_net(), out=tmp_path, **options)
    assert run(plain_net(), out=tmp_path, epochs=3, **options).column("epoch") == [0, 1, 2]


# ---- data of all kinds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1 + 20, 1 + 10 * 2, 2 + 10])
def test_a_small_last_batch_does_not_trouble_batchnorm(n: int) -> None:
    history = run(plain_net(), blobs(n), batch_size=10)
    assert history.column("step") == [2, 2]


def test_shares_of_a_batch_fit_into_the_last_one() -> None:
    history = run(bayesian_net(q_inducing="ensemble", ensemble_size=5), blobs(33), samples=5, split=True)
    assert history.column("step") == [3, 3]


def test_a_loader_gives_the_batches_it_gives() -> None:
    x, y = blobs(40)
    expected, net = plain_net(), plain_net()
    optimiser = optim.Adam(expected.parameters())
    for _ in range(2):
        for start in range(0, 40, 16):
            optimiser.zero_grad()
            rows = slice(start, start + 16)
            F.cross_entropy(expected(x[rows]), y[rows], reduction="none").mean().backward()
            optimiser.step()
    history = run(net, DataLoader(TensorDataset(x, y), batch_size=16), likelihood="categorical")
    assert same(net, expected)
    assert history.column("step") == [3, 3]


def test_a_data_set_trains_as_its_tensors_do() -> None:
    nets = [plain_net() for _ in range(2)]
    run(nets[0], blobs())
    run(nets[1], TensorDataset(*blobs()), likelihood="categorical")
    assert same(*nets)


@pytest.mark.slow
def test_loading_processes_change_nothing_where_nothing_is_random() -> None:
    nets = [plain_net() for _ in range(2)]
    run(nets[0], blobs())
    run(nets[1], TensorDataset(*blobs()), likelihood="categorical", workers=2)
    assert same(*nets)


class Sum(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bayesian_net()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.inner(a + b)


class Two(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = blobs()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] - 1, torch.ones(4), self.y[i]


@pytest.mark.parametrize("make", [Two, lambda: DataLoader(Two(), batch_size=10)])
def test_several_inputs_per_item(make: Any) -> None:
    net, alone = Sum(), bayesian_net()
    history = run(net, make(), likelihood="categorical", validation=make())
    pairs = (Two().x, Two().y)
    if isinstance(make(), Dataset):
        expected = run(alone, pairs, validation=pairs)
        assert history.column("data") == pytest.approx(expected.column("data"), rel=1e-4)
        assert history.column("validation_nll") == pytest.approx(expected.column("validation_nll"), rel=1e-4)
    assert history.last["data"] < history.epochs[0]["data"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        x, y = blobs(20)
        yield from zip(x, y, strict=True)


def test_a_stream_with_a_number_of_inputs() -> None:
    net, expected = bayesian_net(), bayesian_net()
    loader = DataLoader(Stream(), batch_size=8)
    history = run(net, loader, likelihood="categorical", num_data=20)
    assert history.column("step") == [3, 3]
    run(expected, DataLoader(TensorDataset(*blobs(20)), batch_size=8), likelihood="categorical")
    assert same(net, expected)  # the KL counts the same


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_a_stream_without_any_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="the data gave no batch"):
        run(plain_net(), DataLoader(Nothing()), likelihood="categorical", num_data=3)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_type(kind: torch.dtype) -> None:
    x, y = blobs()
    nets = [plain_net() for _ in range(2)]
    run(nets[0], (x, y))
    run(nets[1], (x, y.to(kind)))
    assert same(*nets)


def test_labels_of_another_shape_are_an_error() -> None:
    x, y = blobs()
    with pytest.raises(ValueError, match="target has shape"):
        run(plain_net(), (x, y[:, None]))
    with pytest.raises(ValueError, match="target has shape"):
        run(plain_net(out=1), (x, y.float()))


def test_augmentation_and_preparation_of_a_data_set_are_used() -> None:
    x, y = blobs()
    shifted = Part((x * 8).round().to(torch.int16), y, lambda raw: raw.float() / 8)

    def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randint(-8, 9, x.shape, generator=generator, dtype=x.dtype)

    data = Data("toy", "classification", shifted, validation=shifted, classes=("a", "b", "c"), augment=jitter)
    nets = [plain_net() for _ in range(3)]
    first, again = (run(net, data) for net in nets[:2])
    plain = run(nets[2], (shifted.inputs(), y), validation=(shifted.inputs(), y))
    assert same(nets[0], nets[1])
    assert first.column("validation_nll") == again.column("validation_nll") != plain.column("validation_nll")


# ---- precision and a Fabric of one's own -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*bf16.*:UserWarning")
def test_mixed_precision_trains() -> None:
    net = bayesian_net()
    history = run(net, blobs(100), epochs=8, lr=0.005, precision="bf16-mixed")
    data = history.column("data")
    assert all(map(math.isfinite, data))
    assert data[-1] < 0.9 * data[0]
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float}
    full = bayesian_net()
    expected = run(full, blobs(100), epochs=8, lr=0.005).column("data")
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
