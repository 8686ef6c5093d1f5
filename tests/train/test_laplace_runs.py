"""Laplace at the end of training: by `fit`, by recipes, by `bayesianize train`; once, the same again, refused early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import bayesian_net, blobs, plain_net, run, same, values
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn._common.seeds import derived
from bnn.data import Data, Part
from bnn.nn.families.inducing import InducingBase
from bnn.train import Recipe, run_recipe
from bnn.train.execute import LAPLACE
from bnn.train.laplace import LaplaceStage
from bnn.train.loop import LAPLACE as IN_A_LOOP
from bnn.train.runs.folder import RunFolder, check_free

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


@pytest.mark.parametrize("make", [plain_net, bayesian_net])
def test_fit_ends_with_what_laplace_finds(make: Any, tmp_path: Path) -> None:
    net, by_hand = make(), make()
    history = run(net, laplace="last", out=tmp_path)
    assert run(by_hand).laplace is None
    generator = torch.Generator().manual_seed(derived(7, IN_A_LOOP))
    found = bnn.laplace_(by_hand, blobs(), likelihood="categorical", generator=generator)
    assert same(net, by_hand)
    assert history.laplace.prior_precision == found.prior_precision
    assert list(found.prior_precision) == ["3"]
    stored = plain_net()
    bnn.load_(stored, tmp_path / "net.safetensors")
    assert same(stored, net)


def test_a_run_that_resumes_does_it_once(tmp_path: Path) -> None:
    net, again, longer = bayesian_net(), bayesian_net(), bayesian_net()
    first = run(net, laplace="all", out=tmp_path)
    assert run(again, laplace="all", out=tmp_path).laplace.log_evidence == first.laplace.log_evidence
    assert same(net, again)
    run(longer, laplace="all", out=tmp_path, epochs=3)
    whole = bayesian_net()
    run(whole, laplace="all", epochs=3)
    assert same(longer, whole)


def test_training_may_go_on() -> None:
    net = plain_net()
    run(net, laplace="last")
    before = values(net[3])
    history = run(net, epochs=1)
    assert history.last["kl_u"] > 0
    assert not any(torch.equal(before[name], values(net[3])[name]) for name in ("inducing_mean", "_inducing_sd"))


def test_a_noise_that_was_trained_is_held() -> None:
    x = torch.linspace(-1, 1, 60)[:, None]
    data = Data("line", "regression", Part(x, x[:, 0] + 0.1 * torch.randn(60, generator=torch.Generator())))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    history = run(net, data, epochs=3, lr=0.05, laplace="last")
    assert history.laplace.likelihood is history.likelihood
    assert isinstance(net[2], InducingBase)


def test_a_loader_and_its_number_of_inputs() -> None:
    loader = DataLoader(TensorDataset(*blobs()), batch_size=10, shuffle=True)
    nets = [plain_net(norm=False), plain_net(norm=False)]
    found = [
        run(net, loader, likelihood="categorical", laplace="last", num_data=number).laplace
        for net, number in zip(nets, (30, 300), strict=True)
    ]
    assert [one.inputs for one in found] == [30, 30]
    assert found[1].effective_parameters["2"] > found[0].effective_parameters["2"]


def test_what_cannot_be_done_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is an Ensemble-U of 2 members"):
        run(bayesian_net(q_inducing="ensemble", ensemble_size=2), laplace="last", out=tmp_path / "run")
    shared = bayesian_net()
    bnn.register_global_inducing_weights_(shared, inducing_rows=2, inducing_cols=2)
    with pytest.raises(ValueError, match="shares global inducing weights"):
        run(shared, laplace="last", out=tmp_path / "run")
    with pytest.raises(ValueError, match="'fc' names no Linear"):
        run(plain_net(), laplace="fc", out=tmp_path / "run")
    with pytest.raises(ValueError, match="inducing_cols=2 cannot keep the weights of layer '3', which may have rank 3"):
        run(plain_net(), laplace={"layers": "last", "inducing_cols": 2}, out=tmp_path / "run")
    with pytest.raises(TypeError, match="says nothing about its curvature"):
        run(plain_net(), laplace="last", likelihood=nn.CrossEntropyLoss(reduction="none"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_prior_by_validation_data(tmp_path: Path) -> None:
    asked = {"layers": "last", "prior_precision": "validation"}
    with pytest.raises(ValueError, match='prior_precision="validation" needs validation data'):
        run(plain_net(), laplace=asked, out=tmp_path / "run")
    net, by_hand = plain_net(), plain_net()
    found = run(net, laplace=asked, validation=blobs(20, seed=2)).laplace
    factor = found.variance_factor.get("3", 1.0)
    assert round(found.prior_precision["3"] * factor, 9) in {round(one, 9) for one in bnn.laplace.GRID}
    run(by_hand, validation=blobs(20, seed=2))
    generator = torch.Generator().manual_seed(derived(7, IN_A_LOOP))
    options = {"likelihood": "categorical", "validation": blobs(20, seed=2), "generator": generator}
    assert bnn.laplace_(by_hand, blobs(), "last", "validation", **options).log_evidence == found.log_evidence


def test_by_default_many_validation_data_choose() -> None:
    for number, usual in ((99, "marginal"), (100, "validation")):
        held_out = blobs(number, seed=2)
        loader = DataLoader(TensorDataset(*held_out), batch_size=10)
        for one in (held_out, loader, loader.dataset):
            assert LaplaceStage("last", blobs(), None, validation=one).options()["prior_precision"] == usual
        asked = {"prior_precision": 2.0}
        assert LaplaceStage(asked, blobs(), None, validation=held_out).options()["prior_precision"] == 2.0
    assert LaplaceStage("last", blobs(), None).options()["prior_precision"] == "marginal"


# ---- recipes ---------------------------------------------------------------------------------------------------------


def classes() -> Data:
    x, y = blobs(300)
    held = Part(x[180:], y[180:])
    return Data("blobs", "classification", Part(x[:180], y[:180]), validation=held, classes=("a", "b", "c"))


def recipe(**changes: Any) -> Recipe:
    one = Recipe({"name": "digits"}, {"name": "fcn", "hidden": [8]})
    return one.but(schedule={"epochs": 2, "batch_size": 60, "lr": 0.01}).but(laplace="last", **changes)


def test_a_plain_run_with_laplace_opens_again(tmp_path: Path) -> None:
    data = classes()
    one = run_recipe(recipe(), tmp_path / "run", data=data, **QUIET)
    opened = bnn.open_run(tmp_path / "run")
    assert same(opened.network, one.network)
    assert any(isinstance(layer, InducingBase) for layer in opened.network.modules())
    assert opened.history.laplace.prior_precision == one.history.laplace.prior_precision
    assert opened.temperature == one.temperature != 1  # calibrated after it
    assert max(opened.predict(data.validation)["epistemic"]) > 0
    plain = run_recipe(recipe(calibrate=False).but(laplace=None), data=data, **QUIET)
    found = bnn.laplace_(
        plain.network,
        data,
        prior_precision="validation",  # there are 120
        likelihood="categorical",
        calibrated=True,  # a temperature follows
        generator=torch.Generator().manual_seed(derived(0, LAPLACE)),
    )
    assert found.log_evidence == one.history.laplace.log_evidence


def test_a_finished_run_gets_it_or_loses_it_without_training(tmp_path: Path) -> None:
    data = classes()
    with_it = run_recipe(recipe(), tmp_path / "run", data=data, **QUIET)
    without = recipe().but(laplace=None)
    check_free(RunFolder(tmp_path / "run"), without)
    assert run_recipe(without, tmp_path / "run", data=data, **QUIET).history.laplace is None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["laplace"] is None
    (tmp_path / "run" / "run.json").unlink()
    assert same(run_recipe(recipe(), tmp_path / "run", data=data, **QUIET).network, with_it.network)


def test_every_member_of_a_compressed_ensemble_gets_its_own() -> None:
    method = {"inference": "inducing", "inducing_rows": 2, "inducing_cols": 2}
    one = run_recipe(recipe(members=2, method=method), data=classes(), **QUIET)
    assert list(one.history.laplace.prior_precision) == [f"members.{i}.Linear1" for i in range(2)]


def test_a_recipe_says_which_layers() -> None:
    chosen = {"layers": "last", "prior_precision": "validation"}
    for value in ("last", ("a", "b"), None, chosen):
        assert Recipe.from_dict(json.loads(json.dumps(recipe().but(laplace=value).to_dict()))).laplace == value
    for value in ("", (), 3, ("a", 3)):
        with pytest.raises(ValueError, match='laplace must be "last", "all", a name, or a list of names'):
            recipe().but(laplace=value)
    with pytest.raises(ValueError, match=r"laplace: unknown 'label'.*expected some of \['layers', 'prior_"):
        recipe().but(laplace={"label": "exact"})
    with pytest.raises(ValueError, match="laplace: prior_precision"):
        recipe().but(laplace={"prior_precision": "test"})
    method = {"inference": "ensemble-u", "inducing_rows": 2, "inducing_cols": 2}
    with pytest.raises(ValueError, match="is an Ensemble-U"):
        run_recipe(recipe(method=method), data=classes(), **QUIET)
