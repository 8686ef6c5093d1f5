"""Runs with a teacher: what they learn from, what resumes, and recipes whose plain network teaches."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import bayesian_net, blobs, plain_net, run, same
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn.train import Recipe, Schedule, run_recipe

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}
INPUTS = blobs()[0]


def teacher(seed: int = 5) -> nn.Sequential:
    net = plain_net(norm=False)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return net


def test_a_weight_of_zero_is_a_run_without_a_teacher_bit_for_bit() -> None:
    expected, net = bayesian_net(), bayesian_net()
    before, after = run(expected, samples=2), run(net, samples=2, teacher=teacher(), teacher_weight=0)
    assert same(net, expected)
    assert before.column("data") == after.column("data")


def test_a_weight_of_one_ignores_the_labels() -> None:
    nets = [bayesian_net() for _ in range(3)]
    x, y = blobs()
    for net, labels in zip(nets, (y, (y + 1) % 3), strict=False):
        run(net, (x, labels), teacher=teacher(), teacher_weight=1)
    assert same(nets[0], nets[1])
    run(nets[2], teacher=teacher(), teacher_weight=0.5)
    assert not same(nets[0], nets[2])


def test_the_student_learns_what_the_teacher_says() -> None:
    original, net = teacher(), plain_net(norm=False)
    history = run(net, bnn.data.Part(INPUTS), likelihood="categorical", teacher=original, epochs=60, lr=0.03)
    said = bnn.predict(net, INPUTS, samples=0).probs.argmax(1)
    assert (said == original(INPUTS).argmax(1)).float().mean() > 0.9
    assert history.last["data"] < 0.3 * history.epochs[0]["data"]
    assert "accuracy" not in history.last  # no targets, no hits


@pytest.mark.parametrize(
    "data",
    [
        bnn.data.Part(INPUTS),
        TensorDataset(INPUTS),
        DataLoader(TensorDataset(INPUTS), batch_size=10),
        DataLoader(list(INPUTS), batch_size=10),  # type: ignore[arg-type]
    ],
    ids=["part", "data set", "loader of lists", "loader of tensors"],
)
def test_inputs_without_targets(data: Any) -> None:
    """All weight is on the teacher, whatever the weight; BatchNorm is refreshed from them, too."""
    nets = [bayesian_net(), bayesian_net()]
    history = run(nets[0], data, likelihood="categorical", teacher=teacher(), teacher_weight=0.2, validation=blobs(20))
    run(nets[1], data, likelihood="categorical", teacher=teacher(), teacher_weight=1)
    assert same(*nets)
    assert history.last["validation_accuracy"] >= 0


def test_the_teacher_sees_what_the_student_sees() -> None:
    seen: dict[str, list[Tensor]] = {"teacher": [], "student": []}

    class Watched(nn.Module):
        def __init__(self, name: str, net: nn.Module) -> None:
            super().__init__()
            self.name, self.net = name, net

        def forward(self, x: Tensor) -> Tensor:
            if self.name == "teacher" or self.training:
                seen[self.name].append(x.detach().clone())
            assert self.training == (self.name == "student") or not torch.is_grad_enabled()
            output: Tensor = self.net(x)
            return output

        def __deepcopy__(self, memo: Any) -> Watched:
            return Watched(self.name, copy.deepcopy(self.net))

    part = bnn.data.Part(*blobs())
    data = bnn.data.Data("blobs", "classification", part, classes=("a", "b", "c"), augment=_noisy)
    run(Watched("student", plain_net()), data, teacher=Watched("teacher", teacher()))
    assert len(seen["student"]) == 6
    assert all(map(torch.equal, seen["teacher"], seen["student"]))
    assert not torch.equal(seen["student"][0].sort(0).values, seen["student"][3].sort(0).values)


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=generator)


def test_real_targets_learn_from_a_teacher_with_its_noise() -> None:
    x = INPUTS
    original, net = plain_net(norm=False, out=1), bayesian_net(norm=False, out=1)
    noise = bnn.likelihoods.Gaussian(sd=0.2)
    found = run(net, (x, x.sum(1)), teacher=original, teacher_weight=1.0, teacher_likelihood=noise, epochs=40, lr=0.03)
    assert 0.15 < found.likelihood.sd().item() < 0.6  # it began at 1
    assert noise.sd().item() == pytest.approx(0.2)


# ---- resuming --------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_the_same_teacher_and_refuses_another(tmp_path: Path) -> None:
    expected = bayesian_net()
    run(expected, epochs=3, teacher=teacher())
    run(bayesian_net(), epochs=1, teacher=teacher(), out=tmp_path)
    for other in ({"teacher": teacher(6)}, {"teacher": teacher(), "teacher_weight": 0.123}, {}):
        with pytest.raises(ValueError, match=r"is a checkpoint of another run: teacher: \{'weight'"):
            run(bayesian_net(), epochs=3, out=tmp_path, **other)
    net = bayesian_net()
    run(net, epochs=3, teacher=teacher(), out=tmp_path)
    assert same(net, expected)
    with pytest.raises(ValueError, match=r"another run: teacher: None then, \{'weight'"):
        run(bayesian_net(), out=_started(tmp_path / "without"), teacher=teacher())


def _started(folder: Path) -> Path:
    run(bayesian_net(), epochs=1, out=folder)
    return folder


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_the_network_itself_is_no_teacher() -> None:
    net = bayesian_net()
    with pytest.raises(ValueError, match=r"the teacher is the network that is trained .*copy.deepcopy\(net\)"):
        run(net, teacher=net)


def test_options_of_a_teacher_need_one() -> None:
    with pytest.raises(ValueError, match=r"teacher_weight needs a teacher: pass teacher=, a trained network"):
        run(plain_net(), teacher_weight=0.5)


def test_inputs_alone_need_a_teacher_and_a_likelihood() -> None:
    with pytest.raises(ValueError, match="these data have no targets"):
        run(plain_net(), bnn.data.Part(INPUTS))
    with pytest.raises(ValueError, match=r'data without targets do not say .*: pass likelihood="categorical"'):
        run(plain_net(), bnn.data.Part(INPUTS), teacher=teacher())


# ---- recipes ---------------------------------------------------------------------------------------------------------

TAUGHT = Recipe(
    data={"name": "digits", "first": 200, "validation": 0.2},
    net={"name": "fcn", "hidden": [16]},
    method={"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4},
    schedule=Schedule(epochs=1, batch_size=40),
    pretrain=Schedule(epochs=1, batch_size=40),
    teacher={"weight": 1.0},
)


def test_the_plain_network_of_a_recipe_teaches(tmp_path: Path) -> None:
    taught = run_recipe(TAUGHT, tmp_path / "run", **QUIET)
    alone = run_recipe(TAUGHT.but(teacher=None), **QUIET)
    assert taught.history.last["data"] < alone.history.last["data"]  # near the teacher, not near the labels
    assert Recipe.from_dict(TAUGHT.to_dict()) == TAUGHT
    with pytest.raises(ValueError, match=r"teacher.weight was 1.0, is now 0.5"):
        run_recipe(TAUGHT.but(teacher={"weight": 0.5}), tmp_path / "run", **QUIET)


def test_networks_of_an_ensemble_teach_one_each() -> None:
    found = run_recipe(TAUGHT.but(members=2, calibrate=False), **QUIET)
    assert found.history.last["data"] >= 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrain": None}, "a teacher needs a plain network, by pretrain or weights"),
        ({"teacher": {"wait": 1}}, "teacher must be an object with weight or temperature"),
        ({"teacher": {"weight": 2}}, r"teacher_weight must lie in \[0, 1\]"),
    ],
)
def test_recipes_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_recipe(TAUGHT.but(**changes), **QUIET)
