"""What a run leaves behind: history, metrics, progress; and what it leaves alone: generators and modes."""

from __future__ import annotations

import io
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import bayesian_net, blobs, plain_net, run, same
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn._common.seeds import derived
from bnn.data.dataset import Data, Part
from bnn.train.loop import SCORE
from bnn.train.monitor import Monitor

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
    run(net, (x, y), lr=0.03)  # too timid in some bins, too bold in others
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
    assert f"training NLL {last['data']:.3f}" in lines[1]
    assert f"accuracy {100 * last['accuracy']:.1f} %" in lines[1]
    assert f"validation NLL {last['validation_nll']:.3f}" in lines[1]
    run(bayesian_net(), progress=None)
    run(bayesian_net(), progress=False)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    history = run(bayesian_net(), validation=blobs(20), progress=None)
    last = history.last
    kl = f"KL {last['kl_u']:.3f} + {last['kl_lamda']:.3f}"
    for shown in ("epoch 2.0/2", " left ", f"NLL {last['data']:.3f}", kl, f"NLL {last['validation_nll']:.3f}"):
        assert shown in screen.getvalue()


def test_a_narrow_terminal_shows_how_far_it_is_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    history = run(bayesian_net(), validation=blobs(20), progress=None)
    nll, accuracy = f"NLL {history.last['data']:.3f}", f"{100 * history.last['accuracy']:.1f} %"
    for shown in ("epoch 2.0/2", " left ", nll, accuracy):
        assert shown in screen.getvalue()


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
