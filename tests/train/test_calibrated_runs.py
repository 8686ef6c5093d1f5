"""Recipes calibrate in the end: by default of classes, the same again where a run resumes, and never the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bnn
from bnn._engine.temperature import temperature_of
from bnn.data import Data, Part
from bnn.train import Recipe, load_run, presets, run_recipe
from bnn.train.build import build_net
from bnn.train.execute import why_not_calibrated
from bnn.train.runs.folder import RunFolder, check_free

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


def noisy(held_out: int = 150) -> Data:
    """Two classes, a fifth of the labels wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200 + held_out, 3, generator=generator)
    y = (x[:, 0] > 0).long() ^ (torch.rand(len(x), generator=generator) < 0.2).long()
    held = Part(x[200:], y[200:]) if held_out else None
    return Data("noisy", "classification", Part(x[:200], y[:200]), validation=held, test=held, classes=("a", "b"))


def recipe(**changes: Any) -> Recipe:
    method = {"inference": "inducing", "inducing_rows": 2, "inducing_cols": 2}
    one = Recipe({"name": "digits"}, {"name": "fcn", "hidden": [32]}, method)
    one = one.but(schedule={"epochs": 2, "lr": 0.05, "batch_size": 50})
    return one.but(**changes)


def test_a_recipe_calibrates_and_its_folder_carries_it(tmp_path: Path) -> None:
    data = noisy()
    run = run_recipe(recipe(), tmp_path / "run", data=data, **QUIET)
    t = run.temperature
    assert t == temperature_of(run.network) != 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["temperature"] == t
    opened = bnn.open_run(tmp_path / "run")
    assert opened.temperature == t
    answers = opened.predict(data.test, samples=4, seed=0, probs=True)
    bnn.set_sampling_(opened.network, "weight")
    with torch.no_grad():
        outputs = bnn.draws(opened.network.eval(), data.test.inputs(), 4, torch.Generator().manual_seed(0), 500)
    probs = (outputs / t).softmax(2).mean(0).numpy()
    np.testing.assert_allclose(np.asarray(answers["p(a)"]), probs[:, 0], atol=1e-6)
    stage = load_stage(tmp_path / "run" / "train", opened)
    assert temperature_of(stage) == 1  # what training left, as a stage keeps it


def load_stage(folder: Path, opened: Any) -> torch.nn.Module:
    net = build_net(opened.recipe.net, opened.in_shape, opened.out_features)
    bnn.load_(net, folder / "net.safetensors")
    return net


def test_a_run_that_resumes_finds_the_same(tmp_path: Path) -> None:
    data = noisy()
    once = run_recipe(recipe(), tmp_path / "run", data=data, **QUIET)
    (tmp_path / "run" / "run.json").unlink()  # killed after training, before the end
    (tmp_path / "run" / "net.safetensors").unlink()
    again = run_recipe(recipe(), tmp_path / "run", data=data, **QUIET)
    assert again.temperature == once.temperature
    off = recipe(calibrate=False)
    check_free(RunFolder(tmp_path / "run"), off)  # training does not depend on it
    assert run_recipe(off, tmp_path / "run", data=data, **QUIET).temperature == 1
    assert bnn.open_run(tmp_path / "run").temperature == 1
    assert run_recipe(recipe(), data=data, **QUIET).temperature == once.temperature  # without a folder, too


def test_it_is_left_out_without_a_word_where_it_cannot_be_done() -> None:
    assert run_recipe(recipe(), data=noisy(99), **QUIET).temperature == 1
    assert run_recipe(recipe(), data=noisy(0), **QUIET).temperature == 1
    likelihood = bnn.likelihoods.Categorical()
    assert why_not_calibrated(noisy(99), likelihood) == "99 validation inputs are too few, it takes 100"
    assert why_not_calibrated(noisy(0), likelihood) == "there are no validation data"
    assert why_not_calibrated(noisy(), bnn.likelihoods.Gaussian()) == "the outputs are no logits"
    assert why_not_calibrated(noisy(100), likelihood) is None


def test_weights_of_a_calibrated_network_are_weights(tmp_path: Path) -> None:
    data = noisy()
    plain = recipe(method={"inference": "deterministic"})
    first = run_recipe(plain, tmp_path / "plain", data=data, **QUIET)
    assert first.temperature != 1
    weights = str(tmp_path / "plain" / "net.safetensors")
    run_recipe(recipe(weights=weights, calibrate=False), data=data, **QUIET)  # a warning would be an error


def test_presets_of_the_paper_stay_as_they_are() -> None:
    for name, one in presets().items():
        assert one.calibrate is (not name.startswith("paper/"))


def test_runs_from_before_there_was_calibration(tmp_path: Path) -> None:
    run_recipe(recipe(calibrate=False), tmp_path / "run", data=noisy(), **QUIET)
    for name in ("recipe.json", "run.json"):
        path = tmp_path / "run" / name
        stored = json.loads(path.read_text())
        stored.pop("temperature", None)
        (stored if name == "recipe.json" else stored["recipe"]).pop("calibrate")
        path.write_text(json.dumps(stored))
    opened = load_run(tmp_path / "run")
    assert opened.temperature == 1
    assert opened.recipe is not None
    assert opened.recipe.calibrate is False
    check_free(RunFolder(tmp_path / "run"), recipe())  # may be calibrated now


def test_calibrate_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="calibrate must be true or false"):
        recipe(calibrate=2)
