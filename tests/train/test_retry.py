"""A run that is clearly worse than its plain network is trained a second time, and validation data choose."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import same
from torch import Tensor, nn

import bnn
from bnn.bayesianize import bayesianize_
from bnn.data import Data, Part
from bnn.likelihoods import Categorical, Gaussian
from bnn.nn.base import BayesianLayer
from bnn.train import Recipe, Schedule, converted_stage, run_recipe
from bnn.train.loop import Loop
from bnn.train.plain_stage import plain_stage
from bnn.train.retry import Retry
from bnn.train.runs.folder import RunFolder
from bnn.train.runs.run import Run
from bnn.train.settling import held_out_losses
from bnn.train.spread import CLOSE_ENOUGH, rate_factor, spread, within_noise

WIDE = {"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4, "max_lamda": 0.5, "init_lamda": 0.5}
WIDE |= {"max_sd_u": 0.1}


def part(n: int, seed: int) -> Part:
    """y = sin of a linear form, which a network fits to a few hundredths: without noise."""
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return Part(x, torch.sin(2 * x[:, :1] + x[:, 1:2]))


def data() -> Data:
    return Data("made", "regression", part(300, 0), validation=part(150, 1))


def recipe(**changes: Any) -> Recipe:
    """A posterior that drowns a target without noise, and too little training to mend it."""
    found = Recipe(
        data={"name": "digits"},
        net={"name": "fcn", "hidden": [16, 16]},
        method=WIDE,
        schedule=Schedule(epochs=5, lr=1e-3, batch_size=50),
        pretrain=Schedule(epochs=40, lr=0.02, batch_size=50, cosine=True),
        likelihood="gaussian",
        retry=True,
    )
    return found.but(**changes)


def carried_out(out: Path | None = None, **changes: Any) -> Run:
    return run_recipe(recipe(**changes), out, data=data(), progress=False, tensorboard=False)


def nll(run: Run) -> float:
    losses = held_out_losses(run.network, run.likelihood, data())
    assert losses is not None
    return float(losses.mean())


def test_a_run_that_lost_is_trained_again_and_the_better_one_kept(tmp_path: Path) -> None:
    once, found = carried_out(retry=False), carried_out(tmp_path)
    assert once.plain is not None
    assert once.plain.worse
    assert once.retry is None
    assert found.retry is not None
    assert found.retry.kept
    assert found.retry.first == pytest.approx(nll(once)) == pytest.approx(once.plain.run)
    assert found.retry.second == pytest.approx(nll(found))
    assert found.plain is not None
    assert found.plain.run == pytest.approx(found.retry.second)
    assert not found.plain.worse
    layers = [m for m in found.network.modules() if isinstance(m, BayesianLayer)]
    assert len(layers) == 3  # it is no plain network under another name
    assert float(bnn.draws(found.network, data().train.x, 5).detach().std(0).min()) > 0
    assert bnn.parameter_count(found.network) == bnn.parameter_count(once.network)
    opened = bnn.open_run(tmp_path)
    assert opened.retry == found.retry
    assert opened.history is not None
    assert opened.history.epochs == found.history.epochs  # type: ignore[union-attr]
    assert {"pretrain", "train", "retry"} == set(opened.folder.training())  # type: ignore[union-attr]
    assert same(opened.network, found.network)


def test_a_run_that_did_not_lose_is_trained_once(tmp_path: Path) -> None:
    found = carried_out(tmp_path, spread=0.05, activations=True)
    assert found.plain is not None
    assert not found.plain.worse
    assert found.retry is None
    assert not (tmp_path / "retry").exists()


def test_a_second_training_in_vain_leaves_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted_stage, "closer", lambda one: one.but(method=WIDE | {"max_lamda": 5, "init_lamda": 5}))
    once, found = carried_out(retry=False), carried_out(tmp_path)
    assert found.retry is not None
    assert not found.retry.kept
    assert found.retry.second is not None
    assert found.retry.second > found.retry.first
    assert same(found.network, once.network)
    assert found.plain == once.plain
    opened = bnn.open_run(tmp_path)
    assert opened.history is not None
    assert opened.history.epochs == opened.folder.training()["train"]  # type: ignore[union-attr]


def test_a_second_training_that_diverges_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted_stage, "closer", lambda one: one.but(schedule={"lr": 1e30}))
    with pytest.warns(UserWarning, match="second training diverged"):
        found = carried_out()
    assert (found.retry.second, found.retry.kept) == (None, False)  # type: ignore[union-attr]
    assert same(found.network, carried_out(retry=False).network)


def test_a_stopped_second_training_resumes_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, step = carried_out(tmp_path / "whole"), Loop._take_step

    def stops(self: Loop, *batch: Any) -> None:
        if str(self.settings.out).endswith("retry") and (self.epoch, self.step) == (1, 3):
            raise KeyboardInterrupt
        step(self, *batch)

    monkeypatch.setattr(Loop, "_take_step", stops)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "cut")
    monkeypatch.undo()
    assert RunFolder(tmp_path / "cut").state == "begun"
    again = carried_out(tmp_path / "cut")
    assert again.retry == whole.retry
    assert same(again.network, whole.network)


# ---- how wide a posterior begins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.5, 0.02])
def test_a_posterior_begins_within_the_noise_even_where_the_caps_do_not_count_yet(limit: float) -> None:
    """Its U begins with sds far below their cap: one step of the factor would leave them as they are."""
    made, seed = data(), 0
    plain = plain_stage(recipe(), made, None, {"progress": False})
    noise = Gaussian(sd=1e-3)
    method = within_noise(WIDE, plain.net, made, noise, limit, seed, activations=made.train)
    net = copy.deepcopy(plain.net)
    bayesianize_(net, **method, activations=made.train)
    assert spread(net, made, noise, 1) <= 2 * CLOSE_ENOUGH * limit  # of ten draws, as the sd that is aimed at
    assert method["max_lamda"] / WIDE["max_lamda"] == pytest.approx(method["max_sd_u"] / WIDE["max_sd_u"])


@pytest.mark.parametrize(("sd", "factor"), [(0.5, 1.0), (0.05, 0.5), (1e-4, 0.3)])
def test_the_rate_falls_with_the_noise_of_the_data(sd: float, factor: float) -> None:
    made = Data("made", "regression", Part(torch.randn(500, 3), 4 * torch.randn(500, 1)))  # targets of sd 4
    found = rate_factor(nn.Linear(3, 1), made, Gaussian(sd=4 * sd))
    assert found == pytest.approx(factor, rel=0.15)  # of 500 targets: the sd is known to 3 %
    two = Data("made", "regression", Part(made.train.x, torch.cat([made.train.y, 100 * made.train.y], 1)))
    both = rate_factor(nn.Linear(3, 2), two, Gaussian(sd=4 * sd, targets=2))
    assert both == pytest.approx(0.3)  # of the target with the least
    assert rate_factor(nn.Linear(3, 1), made, Categorical()) == 1


@pytest.mark.parametrize("limit", [None, 0.5])
def test_the_rate_is_lowered_where_the_spread_is(limit: float | None) -> None:
    found = carried_out(spread=limit, retry=False)
    assert found.history is not None
    lr = found.history.epochs[0]["lr"]
    assert lr == 1e-3 if limit is None else 3e-4 * (1 - 1e-9) <= lr < 1e-3
    assert found.recipe is not None
    assert found.recipe.schedule.lr == 1e-3


def test_what_cannot_be_narrowed_is_left() -> None:
    made = data()
    plain = plain_stage(recipe(), made, None, {"progress": False})
    ffg = {"inference": "ffg", "init_sd": 0.1}
    assert within_noise(ffg, plain.net, made, Gaussian(sd=1e-3), 0.5, 0) == ffg
    assert within_noise(WIDE, plain.net, made, Categorical(), 0.5, 0) == WIDE


# ---- where a start from activations is possible ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"inference": "ffg-u"}, True),
        ({"inference": "singular-w"}, True),
        ({"inference": "inducing", "init": "paper"}, False),
        ({"inference": "ffg"}, False),
        ({"inference": {"Linear": {"inference": "ffg"}, "0": "inducing"}}, True),
        ({"inference": {"Linear": {"inference": "ffg"}, "0": None}}, False),
    ],
)
def test_activations_are_for_layers_of_limited_rank(method: dict[str, Any], expected: bool) -> None:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), torch.randn(50, 6)
    assert converted_stage.of_limited_rank(method) is expected
    if expected:
        bayesianize_(net, **method, activations=x)
    else:
        with pytest.raises(ValueError, match="leave it out"):
            bayesianize_(net, **method, activations=x)


def test_activations_start_closer_to_the_plain_network() -> None:
    distances: list[Tensor] = []
    made, still = data(), {"max_lamda": 1e-6, "init_lamda": 1e-6, "max_sd_u": 1e-6}
    plain = plain_stage(recipe(), made, None, {"progress": False})
    for activations in (False, True):
        found = carried_out(method=WIDE | still, activations=activations, retry=False, schedule={"lr": 1e-9})
        means = bnn.draws(found.network, made.train.x, 1)[0]
        distances.append((means - plain.net(made.train.x)).detach().square().mean())
    assert distances[1] < 0.5 * distances[0]


def test_the_lower_nll_is_kept() -> None:
    assert Retry(1.0, 0.9).kept
    assert not Retry(1.0, 1.0).kept
    assert not Retry(1.0, None).kept
