"""Mistakes show before a run starts, in plain words, and leave the network alone."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import bayesian_net, blobs, plain_net, run, same
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn.train import load_run

X, Y = blobs()


def with_value(x: torch.Tensor, row: int, value: float) -> torch.Tensor:
    x = x.clone()
    x[row] = value
    return x


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((with_value(X, 4, math.nan), Y), {}, "x is not finite in row 4: remove such rows"),
        ((X, with_value(Y.float(), 2, math.inf)), {}, "y is not finite in row 2"),
        ((X, Y + 1), {}, "labels run from 1 to 3, but the network has 3 outputs: expected 0 to 2"),
        ((X, Y - 1), {}, "labels run from -1 to 1"),
        ((X, Y == 1), {}, r"y is boolean: use y.long\(\)"),
        ((X, torch.nn.functional.one_hot(Y).float()), {}, r"y looks one-hot: use y.argmax\(1\)"),
        ((X, Y.float()), {}, r"targets were taken for real numbers: use y.long\(\) for class labels"),
        ((X.double(), Y), {}, r"cannot take these inputs, torch.float64 .* use x.to\(torch.float32\)"),
        ((X[:, :1], Y), {}, r"cannot take these inputs, torch.float32 of shape \(1,\) each"),
    ],
)
def test_a_mistake_shows_before_training(data: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    net = plain_net()
    with pytest.raises(ValueError, match=message):
        run(net, data, out=tmp_path / "run", **options)
    assert same(net, plain_net())
    assert not (tmp_path / "run").exists()


def test_a_network_with_too_many_outputs_for_the_classes_is_refused() -> None:
    data = bnn.data.arrays(X.numpy(), Y.numpy())
    with pytest.raises(ValueError, match="the network has 5 outputs, arrays has 3 classes: change its last layer"):
        run(plain_net(out=5), data)


def test_one_real_target_may_come_without_its_dimension() -> None:
    one, two = plain_net(out=1), plain_net(out=1)
    target = X.sum(1)
    run(one, (X, target), validation=(X[:9], target[:9]))
    run(two, (X, target[:, None]), validation=(X[:9], target[:9, None]))
    assert same(one, two)


def test_class_indices_may_come_with_a_dimension_too_many() -> None:
    one, two = plain_net(), plain_net()
    run(one, (X, Y[:, None]), validation=(X[:9], Y[:9, None]))
    run(two, (X, Y), validation=(X[:9], Y[:9]))
    assert same(one, two)


def test_one_hot_targets_are_kept_where_they_are_meant() -> None:
    one, two = plain_net(), plain_net()
    run(one, (X, torch.nn.functional.one_hot(Y).float()), likelihood="categorical")
    run(two, (X, Y), likelihood="categorical")
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_looking_leaves_modes_and_the_global_generator_alone() -> None:
    net = plain_net()
    net.eval()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(net, (X, Y))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in net.modules())


def test_a_run_of_fit_reads_back_with_everything_it_needs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    data = bnn.data.arrays(x, 1000 + 50 * x[:, 0].astype(np.float64))
    net = plain_net(out=1)
    history = run(net, data, out=tmp_path)
    again = load_run(tmp_path, net=plain_net(out=1))
    assert same(again.net, net)
    assert again.target == data.target
    assert again.likelihood.sd().item() == pytest.approx(history.likelihood.sd().item(), rel=1e-5)
    assert torch.equal(again.preparation(x[:3]), data.preparation(x[:3]))
    with pytest.raises(ValueError, match="pass net=, a plain one"):
        load_run(tmp_path)


def test_two_runs_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    class Nested(torch.nn.Module):
        """Starts another run in the same folder from inside a step."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                run(plain_net(), (X, Y), out=tmp_path)
            return x

    with pytest.raises(RuntimeError, match="another run is training in"):
        run(torch.nn.Sequential(Nested(), plain_net()), (X, Y), out=tmp_path)
    run(plain_net(), (X, Y), out=tmp_path)  # and when it has ended, the folder is free


def test_a_child_does_not_hold_the_lock_of_a_killed_run(tmp_path: Path) -> None:
    """As loading processes do, which live on for some seconds."""
    program = (
        "import os, sys, time\n"
        "from bnn.train import RunFolder\n"
        "with RunFolder(sys.argv[1]).alone():\n"
        "    if os.fork() == 0:\n"
        "        sys.stdout.close(); os.close(1)\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=False, timeout=60, check=False)
    assert done.returncode == -9
    run(plain_net(), (X, Y), out=tmp_path)


def test_workers_that_keep_their_random_state_are_refused_where_a_run_may_go_on(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=10, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="persistent_workers=False, or leave out= away"):
        run(plain_net(), loader, likelihood="categorical", out=tmp_path)


def test_every_share_of_a_split_batch_is_enough_for_batchnorm() -> None:
    x, y = blobs(25)
    net = bayesian_net(q_inducing="ensemble", ensemble_size=5)
    assert len(run(net, (x, y), batch_size=20, samples=5, split=True).epochs) == 2


def test_batches_of_one_input() -> None:
    assert run(plain_net(norm=False), (X, Y), batch_size=1).last["step"] == len(X)


def test_some_of_several_targets_may_be_missing_and_none_of_a_single_one() -> None:
    y = torch.stack([X.sum(1), X[:, 0]], 1)
    gone = with_value(y, 5, math.nan)
    with pytest.raises(ValueError, match=r"all targets are NaN in row 5 of y: remove such rows first"):
        run(plain_net(out=2), (X, gone))
    with pytest.raises(ValueError, match=r"y is not finite in row 5: remove such rows, or fill them in, first"):
        run(plain_net(out=1), (X, gone[:, :1]))
    gone[5, 0], gone[6, 1] = math.inf, math.nan
    with pytest.raises(ValueError, match=r"all targets are NaN|y is not finite in row 5"):
        run(plain_net(out=2), (X, gone))
    with pytest.raises(ValueError, match=r"y is not finite in row 5"):
        run(plain_net(out=2), (X, torch.where(gone.isnan(), 0.0, gone)))
