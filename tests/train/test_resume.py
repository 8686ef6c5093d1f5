"""Runs that are killed, interrupted and started again end with the bits of a run that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, environment, plain_net, program, run, same, values
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import bnn


@pytest.mark.slow
def test_runs_killed_at_random_instants_end_with_the_same_bits(tmp_path: Path) -> None:
    kinds = ["diagonal", "ensemble-u", "plain", "ensemble"]
    command = [*program("killed_run.py"), os.fspath(tmp_path), "12", "1", *kinds]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for kind in kinds:
        assert report[kind]["kills"] == 12
        assert report[kind]["ends"]
        for end in report[kind]["ends"]:
            assert end == {"same": True, "epochs": [0, 1, 2, 3, 4], "left": []}, kind


# ---- signals ---------------------------------------------------------------------------------------------------------


class Signalling:
    """Cross-entropy that sends this process a signal when a training step asks for the n-th time."""

    def __init__(self, number: int = signal.SIGINT, n: int = 0) -> None:
        self.number, self.n, self.steps = number, n, 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if output.requires_grad:
            self.steps += 1
            if self.steps == self.n:
                os.kill(os.getpid(), self.number)
        return F.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6])
def test_ctrl_c_finishes_the_step_and_the_run_goes_on_with_the_same_bits(tmp_path: Path, step: int) -> None:
    """Three steps an epoch: within one, at its end, and at the very end."""
    validation = blobs(20, seed=2)
    expected = bayesian_net()
    whole = run(expected, likelihood=Signalling(), validation=validation)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    likelihood = Signalling(n=step)
    epoch, done = divmod(step - 1, 3)
    with pytest.raises(
        KeyboardInterrupt, match=rf"stopped in epoch {epoch}, step {done + 1}; start it again to resume"
    ):
        run(bayesian_net(), likelihood=likelihood, validation=validation, out=tmp_path)
    assert likelihood.steps == step
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    net, likelihood = bayesian_net(), Signalling()
    history = run(net, likelihood=likelihood, validation=validation, out=tmp_path)
    assert likelihood.steps == 6 - step
    assert same(net, expected)
    for name in whole.epochs[0]:
        assert name == "seconds" or history.column(name) == whole.column(name)


def test_ctrl_c_without_a_folder_says_what_would_have_helped() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"stopped in epoch 0, step 2; with out=<folder> a run can be resumed"):
        run(plain_net(), likelihood=Signalling(n=2))


def test_ctrl_c_leaves_modes_and_global_generators_as_they_were(tmp_path: Path) -> None:
    net = plain_net()
    net.eval()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        run(net, likelihood=Signalling(n=2), out=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in net.modules())


def test_sigterm_ends_the_program_as_it_would_have(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run(plain_net(), likelihood=Signalling(signal.SIGTERM, 2), out=tmp_path)
    assert caught.value.code == 143
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_does_not_wait() -> None:
    class Impatient(Signalling):
        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            if output.requires_grad and self.steps == 1:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(output, target)

    likelihood = Impatient()
    net = plain_net(norm=False)
    before = values(net)
    with pytest.raises(KeyboardInterrupt):
        run(net, likelihood=likelihood, batch_size=15)
    assert likelihood.steps == 1
    assert not same(net, before)  # of the first step


class LateSignal(nn.Module):
    """Sends SIGTERM when it is evaluated the n-th time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        self.n -= not self.training
        if self.n == 0 and not self.training:
            os.kill(os.getpid(), signal.SIGTERM)
        return x


def test_a_signal_after_the_last_step_is_not_lost(tmp_path: Path) -> None:
    net = nn.Sequential(plain_net(), LateSignal(n=3))  # tried before training, scored after each of two epochs
    with pytest.raises(SystemExit) as caught:
        run(net, validation=blobs(5), out=tmp_path)
    assert caught.value.code == 143
    assert (tmp_path / "net.safetensors").exists()  # there was nothing left to do


def test_signals_that_are_ignored_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
    try:
        likelihood = Signalling(n=2)
        run(plain_net(), likelihood=likelihood)
        assert likelihood.steps == 6
    finally:
        signal.signal(signal.SIGINT, before)


def test_fit_works_in_a_thread_where_signals_cannot_be_handled() -> None:
    expected, net, errors = plain_net(), plain_net(), []
    run(expected)

    def work() -> None:
        try:
            run(net)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert same(net, expected)


# ---- going on from other kinds of data -------------------------------------------------------------------------------


class Augmented(Dataset[Any]):
    """Items with noise of torch's global generator."""

    def __init__(self) -> None:
        self.x, self.y = blobs()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + torch.rand(4), self.y[i]


@pytest.mark.parametrize("kind", ["dataset", "loader", "loader with a generator"])
def test_random_transforms_go_on_within_an_epoch(tmp_path: Path, kind: str) -> None:
    def data() -> Any:
        if kind == "dataset":
            return Augmented()
        generator = torch.Generator() if "generator" in kind else None
        return DataLoader(Augmented(), batch_size=10, shuffle=True, generator=generator)

    expected = plain_net()
    run(expected, data(), likelihood=Signalling())
    with pytest.raises(KeyboardInterrupt):
        run(plain_net(), data(), likelihood=Signalling(n=5), out=tmp_path)
    net = plain_net()
    run(net, data(), likelihood=Signalling(), out=tmp_path)
    assert same(net, expected)


@pytest.mark.slow
def test_loading_processes_go_on_within_an_epoch(tmp_path: Path) -> None:
    expected = plain_net()
    run(expected, Augmented(), likelihood=Signalling(), workers=2)
    with pytest.raises(KeyboardInterrupt):
        run(plain_net(), Augmented(), likelihood=Signalling(n=5), out=tmp_path, workers=2)
    net = plain_net()
    run(net, Augmented(), likelihood=Signalling(), out=tmp_path, workers=2)
    assert same(net, expected)


def test_a_shuffled_validation_loader_scores_the_same_after_going_on(tmp_path: Path) -> None:
    """Stopped after the last step of an epoch, the run scores first thing when it goes on."""
    validation = DataLoader(torch.utils.data.TensorDataset(*blobs(33, seed=2)), batch_size=7, shuffle=True)
    whole = run(bayesian_net(), likelihood=Signalling(), validation=validation)
    with pytest.raises(KeyboardInterrupt):
        run(bayesian_net(), likelihood=Signalling(n=3), validation=validation, out=tmp_path)
    history = run(bayesian_net(), likelihood=Signalling(), validation=validation, out=tmp_path)
    assert history.column("validation_nll") == whole.column("validation_nll")


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_more_epochs_go_on_from_a_finished_run(tmp_path: Path, optimiser: str) -> None:
    options: dict[str, Any] = {"optimiser": optimiser, "lr": 0.01, "milestones": [1, 3], "warmup": 1, "anneal": 2}
    expected = bayesian_net()
    whole = run(expected, epochs=4, **options)
    for epochs in (1, 3, 4):
        net = bayesian_net()
        history = run(net, epochs=epochs, out=tmp_path, **options)
        assert history.column("epoch") == list(range(epochs))
    assert same(net, expected)
    assert history.column("data") == whole.column("data")


def test_a_finished_run_started_again_gives_the_same_network_without_a_step(tmp_path: Path) -> None:
    first, again, likelihood = bayesian_net(), bayesian_net(), Signalling()
    run(first, likelihood=Signalling(), out=tmp_path)
    history = run(again, likelihood=likelihood, out=tmp_path)
    assert likelihood.steps == 0
    assert same(first, again)
    assert history.column("epoch") == [0, 1]
    loaded = plain_net()
    bnn.load_(loaded, tmp_path / "net.safetensors")
    assert same(first, loaded)


def test_a_run_keeps_its_seed(tmp_path: Path) -> None:
    expected = bayesian_net()
    run(expected, epochs=2, seed=1)
    run(bayesian_net(), epochs=1, seed=1, out=tmp_path)
    net = bayesian_net()
    run(net, epochs=2, seed=2, out=tmp_path)
    assert same(net, expected)
