"""What goes wrong is said clearly, and costs nothing: divergence, folders of other runs, wrong options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, plain_net, run, same, values
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import bnn
from bnn._common.errors import DivergenceError
from bnn._common.seeds import derived
from bnn.data.batches import Place
from bnn.data.dataset import Part
from bnn.train.loop import STEP

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
    data = TensorDataset(x, y)  # not looked at before training, as arrays are
    if make is bayesian_net:
        bnn.set_sampling_(expected, "local")  # as fit draws in its steps
    elbo = bnn.ELBO(expected, 60, "categorical")
    optimiser = optim.Adam(bnn.parameter_groups(elbo, 1e-3))
    for step in range(3):
        indices = Place(7, 0).parts(60, 10)[step][0]
        torch.manual_seed(derived(7, STEP, 0, step, 0))
        optimiser.zero_grad()
        elbo(x[indices], y[indices]).loss.backward()
        optimiser.step()
    with pytest.raises(DivergenceError, match=r"the loss is nan in epoch 0, step 3 .*NaN in the inputs"):
        run(net, data, out=tmp_path, save_every=0, likelihood="categorical")
    assert same(net, expected)
    again = make()
    with pytest.raises(DivergenceError, match=r"the last checkpoint in .* is intact"):
        run(again, data, out=tmp_path, likelihood="categorical")
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


def test_a_step_that_overflows_is_not_stored(tmp_path: Path) -> None:
    """Loss and gradient are finite, the parameters after the step are not."""
    x, y = blobs()
    with pytest.raises(DivergenceError, match="a parameter is not finite after epoch 0, step 1"):
        run(plain_net(norm=False), (100 * x, y), optimiser="sgd", lr=3e38, out=tmp_path, save_every=0)
    assert not (tmp_path / "checkpoint.safetensors").exists()


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
    monkeypatch.setattr("bnn._common.atomic.open", refuse, raising=False)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"cannot write to .*: Permission denied"):
        run(net, out=tmp_path)
    assert same(net, before)


# ---- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learning_rate": 1}, TypeError, "unknown option 'learning_rate' for 'bnn.fit'; it is called 'lr' here"),
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
