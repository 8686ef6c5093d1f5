"""`validation.json`: predictions on the validation data, as `bnn.predict` makes them, and files that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_data import flowers, prices

import bnn
from bnn.files import FileFormatError
from bnn.train import Recipe, Run, RunFolder, run_recipe
from bnn.train.build import build_data
from bnn.train.runs import abstaining
from bnn.train.runs.abstaining import Validation
from bnn.train.runs.folder import VALIDATION
from bnn.train.step import Sampling

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}
METHOD = {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3, "max_lamda": 0.3, "init_lamda": 0.2}


def read_validation(folder: Path) -> Validation:
    stored = RunFolder(folder).read(VALIDATION)
    assert stored is not None
    return Validation.from_dict(stored, str(folder / VALIDATION))


def write_validation(folder: Path, run: Run, data: Any, samples: int | None = None) -> None:
    replace(run, folder=RunFolder(folder)).write_validation(data, samples)


def outcome(data: dict[str, Any], **more: Any) -> tuple[Run, Any]:
    values = {"data": data, "net": {"name": "fcn", "hidden": [8]}, "method": METHOD, "schedule": {"epochs": 1}} | more
    found = build_data(data)
    return run_recipe(Recipe.from_dict(values), data=found, **QUIET), found


def predicted(run: Run, part: Any, samples: int | None = None) -> Any:
    generator = torch.Generator().manual_seed(0)
    with Sampling(run.network, "weight").in_force():
        return bnn.predict(run.network, part.inputs(), samples, run.likelihood, generator, 500)


def test_classes_are_as_predict_says(tmp_path: Path) -> None:
    run, data = outcome({"csv": str(flowers(tmp_path)), "target": "kind", "validation": 0.3})
    write_validation(tmp_path, run, data)
    found, expected = read_validation(tmp_path), predicted(run, data.validation)
    assert (found.samples, found.seed, found.task, found.error) == (20, 0, "classification", None)
    for name in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6)
    assert found.right is not None
    assert found.right.tolist() == (expected.probs.argmax(1) == data.validation.y).tolist()
    assert found.epistemic.max() > 1e-4


def test_real_targets_are_in_their_own_units(tmp_path: Path) -> None:
    run, data = outcome({"csv": str(prices(tmp_path)), "target": "price", "validation": 0.3})
    write_validation(tmp_path, run, data, samples=7)
    found, expected = read_validation(tmp_path), predicted(run, data.validation, 7)
    (sd,) = data.target.sd
    assert (found.samples, found.task, found.right) == (7, "regression", None)
    for name in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(found, name), sd * getattr(expected, name)[:, 0].sqrt(), rtol=1e-5)
    errors = (sd * (data.validation.y - expected.mean)[:, 0]).abs()
    np.testing.assert_allclose(found.error, errors, rtol=1e-4, atol=1e-4)
    assert found.total.min() > 1  # not in units of the sd of the prices, which is about 20


def test_several_real_targets_stay_apart(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "two.npz", x=x, y=x[:, :2] * [1, 100])
    run, data = outcome({"arrays": str(tmp_path / "two.npz"), "validation": 0.25})
    write_validation(tmp_path, run, data)
    found = read_validation(tmp_path)
    assert found.error is not None
    assert found.total.shape == found.error.shape == (10, 2)


def test_a_plain_network_runs_once(tmp_path: Path) -> None:
    data = {"csv": str(flowers(tmp_path)), "target": "kind"}
    run, built = outcome(data, method={"inference": "deterministic"})
    write_validation(tmp_path, run, built, samples=30)
    found = read_validation(tmp_path)
    assert found.samples == 1
    assert found.epistemic.tolist() == [0.0] * 9


def test_many_inputs_are_thinned_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = outcome({"csv": str(flowers(tmp_path)), "target": "kind", "validation": 0.3})
    monkeypatch.setattr(abstaining, "MOST", 5)
    write_validation(tmp_path, run, data)
    every = data.validation.subset(torch.tensor([0, 5, 10, 16, 21]))  # of 27
    np.testing.assert_allclose(read_validation(tmp_path).total, predicted(run, every).total, rtol=1e-5)


def test_without_validation_data_there_is_nothing_to_write(tmp_path: Path) -> None:
    run, data = outcome({"csv": str(flowers(tmp_path)), "target": "kind", "validation": None})
    with pytest.raises(ValueError, match="has no validation part"):
        write_validation(tmp_path, run, data)
    assert not (tmp_path / "validation.json").exists()
    assert replace(run, folder=RunFolder(tmp_path)).validation is None


GOOD: dict[str, Any] = {
    "format": "bayesianize validation",
    "version": 1,
    "samples": 20,
    "seed": 0,
    "task": "classification",
    "total": [0.5, 0.1],
    "aleatoric": [0.4, 0.1],
    "epistemic": [0.1, 0.0],
    "right": [True, False],
    "error": None,
}


def test_a_file_by_hand(tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text(json.dumps(GOOD))
    found = read_validation(tmp_path)
    assert found.total.tolist() == [0.5, 0.1]
    assert found.right is not None
    assert found.right.dtype == bool


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected an object whose format is"),
        ({"version": 2}, "it has version 2, this one reads 1"),
        ({"total": [0.5]}, "equally long"),
        ({"total": [0.5, "x"]}, "could not convert"),
        ({"total": [0.5, float("nan")]}, "total must be a list of finite numbers"),
        ({"total": None}, "total must be a list"),
        ({"right": None}, "right must be a list"),
        ({"total": [], "aleatoric": [], "epistemic": [], "right": []}, "not empty"),
    ],
)
def test_files_that_are_none(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text(json.dumps(GOOD | change))
    with pytest.raises(FileFormatError, match=message):
        read_validation(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "bayesianize validation"}'])
def test_files_cut_short(text: str, tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text(text)
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_validation(tmp_path)
