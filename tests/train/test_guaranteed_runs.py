"""Runs with a guarantee: what was set aside changes nothing but the guarantee, and predictions keep it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import bnn
from bnn.conformal import calibrate
from bnn.data.dataset import Data
from bnn.files import FileFormatError
from bnn.train import Recipe, run_recipe
from bnn.train.runs.folder import GUARANTEE
from bnn.train.runs.run import Run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(420, 2))
REAL = np.stack([100 + 20 * X[:, 0] + 5 * RNG.exponential(size=420), X[:, 1] ** 2], axis=1)
LABELS = (X[:, 0] + 0.8 * RNG.normal(size=420) > 0).astype(int) + (X[:, 1] > 0.7)


def data_of(y: Any, guarantee: Any = 0.2) -> Data:
    return bnn.data.arrays(X, y, test=0.2, validation=0.3, guarantee=guarantee, name="made")


def trained(data: Data, out: pathlib.Path | None = None, method: str = "ffg-u", **more: Any) -> Run:
    recipe = Recipe(
        {"arrays": "made.npz"},
        {"name": "fcn", "hidden": [8]},
        {"inference": "deterministic"} if method == "plain" else {"inference": method},
    ).but(schedule={"epochs": 15, "lr": 0.02}, **more)
    return run_recipe(recipe, out, data=data, progress=False)


@pytest.mark.parametrize("y", [REAL, LABELS], ids=["reals", "classes"])
def test_nothing_else_sees_them(y: Any) -> None:
    """With wrong targets in that part alone, network, noise and temperature are the same to the last bit."""
    data = data_of(y)
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    wrong = bnn.data.Part(data.guarantee.x * 100, data.guarantee.y.flip(0), data.guarantee.prepare)
    one, other = trained(data), trained(Data(**{**vars(data), "guarantee": wrong}))
    for name, tensor in one.network.state_dict().items():
        assert torch.equal(tensor, other.network.state_dict()[name]), name
    for mine, theirs in zip(one.likelihood.parameters(), other.likelihood.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert one.temperature == other.temperature
    assert one.guarantee is not None
    assert other.guarantee is not None
    assert one.guarantee.rows == other.guarantee.rows == 84
    assert one.guarantee != other.guarantee


def test_intervals_are_those_of_the_library_in_own_units(tmp_path: pathlib.Path) -> None:
    data = data_of(REAL)
    trained(data, tmp_path)
    run = bnn.open_run(tmp_path)
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    assert data.target is not None
    rows, new = (run.predict(part) for part in (data.guarantee, data.test))
    y = data.target.own_units(data.guarantee.y).numpy()
    found = run.predict(data.test, guarantee=0.8)
    for d in range(2):
        mean, sd = (np.array([table[f"{name}_{d}"]]) for table in (rows,) for name in ("mean", "total"))
        own = calibrate((mean, sd), y[:, d])
        ends = own.intervals((np.array([new[f"mean_{d}"]]), np.array([new[f"total_{d}"]])), 0.8)
        np.testing.assert_allclose([found[f"low_{d}"], found[f"high_{d}"]], ends, rtol=1e-5, atol=1e-6)
    assert found.about["level"] == 0.8
    about = found.about["guarantee"]
    assert found.stated == f"guarantee: {about.pop('statement')}"
    each = {"target 0": 84, "target 1": 84}
    assert about == {"level": 0.8, "rows": 84, "rows_of_each": each, "method": "normalized", "by_class": False}
    assert "in its 80 % interval with a probability of at least 80 %, for each target by itself" in found.stated
    again = run.predict(data.guarantee, guarantee=0.8)
    inside = [(np.array(again[f"low_{d}"]) <= y[:, d]) & (y[:, d] <= np.array(again[f"high_{d}"])) for d in range(2)]
    assert np.abs(np.sum(inside, axis=1) - np.ceil(85 * 0.8)).max() <= 1  # the one of rank k is on an end


def test_sets_are_those_of_the_library(tmp_path: pathlib.Path) -> None:
    data = data_of(LABELS)
    trained(data, tmp_path)
    run = bnn.open_run(tmp_path)
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    tables = run.predict(data.guarantee, probs=True), run.predict(data.test, probs=True)
    probs, new = (np.array([table[f"p({name})"] for name in data.classes]).T for table in tables)
    wanted = calibrate(probs, data.guarantee.y).sets(new, 0.9)
    found = run.predict(data.test, guarantee=0.9)
    sets = [set(text.split("; ")) - {""} for text in found["set"]]
    assert sets == [{name for name, inside in zip(data.classes, row, strict=True) if inside} for row in wanted]
    best = [text.split("; ")[0] == name for text, name in zip(found["set"], found["class"], strict=True) if text]
    assert all(best)
    about = found.about["guarantee"]
    assert found.stated == f"guarantee: {about.pop('statement')}"
    assert about == {"level": 0.9, "rows": 84, "rows_of_each": {}, "method": "lac", "by_class": False}
    assert "over inputs of all classes, not within each class" in found.stated
    assert "`bayesianize train --guarantee-by-class` (guarantee_by_class=True of a Recipe in Python)" in found.stated
    assert found.text >= {"class", "set"}


def test_within_every_class(tmp_path: pathlib.Path) -> None:
    data = data_of(LABELS)
    trained(data, tmp_path, guarantee_by_class=True)
    run = bnn.open_run(tmp_path)
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    tables = run.predict(data.guarantee, probs=True), run.predict(data.test, probs=True)
    probs, new = (np.array([table[f"p({name})"] for name in data.classes]).T for table in tables)
    wanted = calibrate(probs, data.guarantee.y, by_class=True).sets(new, 0.8)
    found = run.predict(data.test, guarantee=0.8)
    sets = [set(text.split("; ")) - {""} for text in found["set"]]
    assert sets == [{name for name, inside in zip(data.classes, row, strict=True) if inside} for row in wanted]
    counts = data.guarantee.y.bincount().tolist()
    each = dict(zip(data.classes, counts, strict=True))
    assert (found.about["guarantee"]["rows"], found.about["guarantee"]["rows_of_each"]) == (84, each)
    assert found.stated is not None
    assert f"with 84 inputs set aside ({', '.join(f'{name} {n}' for name, n in each.items())}), a new" in found.stated
    assert "of at least 80 %, within every class, on average over such sets; with" in found.stated
    assert "--guarantee-by-class" not in found.stated
    few = min(each, key=lambda name: each[name])
    with pytest.raises(ValueError, match=rf"takes 99 calibration rows of each, .* {each[few]} of {few}"):
        run.predict(X[:3], guarantee=0.99)


def test_within_every_class_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="guarantee_by_class is for classes, and these are real targets"):
        trained(data_of(REAL), guarantee_by_class=True)
    with pytest.raises(ValueError, match=r"guarantee_by_class needs inputs that are set aside.* give guarantee, too"):
        trained(data_of(LABELS, None), guarantee_by_class=True)
    data = data_of(LABELS, 12)
    assert data.guarantee is not None
    assert data.guarantee.y is not None
    lacking = data.guarantee.subset(data.guarantee.y < 2)
    with pytest.warns(UserWarning, match=rf"of the {len(lacking)} inputs set aside none is of '2': set more aside"):
        run = trained(Data(**{**vars(data), "guarantee": lacking}), guarantee_by_class=True)
    assert run.guarantee is not None
    assert run.guarantee.level is None
    with pytest.raises(ValueError, match="and there are 0 of 2"):
        run.predict(X[:3], guarantee=0.8)


def test_targets_of_which_some_are_missing(tmp_path: pathlib.Path) -> None:
    """All that were set aside, and how many are known of each; the level follows the fewest; older files say less."""
    holes = REAL.copy()
    u = np.random.default_rng(1).random(420)
    holes[u < 0.4, 1], holes[u > 0.9, 0] = np.nan, np.nan
    run = trained(data_of(holes), tmp_path)
    run.targets = ("power", "loss")
    assert run.guarantee is not None
    most, known = map(len, run.guarantee.guarantee.scores)
    assert 84 > most > 65 > known
    found = run.predict(X[:3], guarantee=0.8)
    assert found.stated is not None
    assert f"with 84 inputs set aside (power {most}, loss {known}), a new one" in found.stated
    assert found.about["guarantee"]["rows"] == 84
    assert found.about["guarantee"]["rows_of_each"] == {"power": most, "loss": known}
    ranks = {n: -(-(n + 1) * 4 // 5) for n in (most, known)}
    low, high = (100 * (k * (n + 1 - k) / (n + 2)) ** 0.5 / (n + 1) for n, k in ranks.items())
    assert f"varies about it by {low:.1f} to {high:.1f} points" in found.stated
    stored = json.loads((tmp_path / GUARANTEE).read_text())
    assert stored.pop("inputs") == 84
    (tmp_path / GUARANTEE).write_text(json.dumps(stored))
    older = bnn.open_run(tmp_path).guarantee
    assert older is not None
    assert (older.inputs, older.rows) == (None, most)


def test_a_plain_network_has_one_too() -> None:
    run = trained(data_of(REAL[:, 0]), method="plain")
    assert run.guarantee is not None
    assert run.guarantee.draws == 1
    assert len(run.predict(X[:5], guarantee=0.9)) == 5


def test_refusals_say_what_to_do(tmp_path: pathlib.Path) -> None:
    without = trained(data_of(LABELS, None))
    with pytest.raises(
        ValueError, match=r"guarantee needs inputs that were set aside .*`bayesianize train --guarantee`"
    ):
        without.predict(X[:3], guarantee=0.9)
    run = trained(data_of(LABELS, 15), tmp_path)
    with pytest.raises(
        ValueError, match=r"guarantee=0.95: .* takes 19 calibration rows, and there are 15.* at most 0.937"
    ):
        run.predict(X[:3], guarantee=0.95)
    with pytest.raises(ValueError, match=r"of 20 draws with seed 0: leave samples=5 out"):
        run.predict(X[:3], guarantee=0.9, samples=5)
    with pytest.raises(ValueError, match="leave seed=3 out"):
        run.predict(X[:3], guarantee=0.9, seed=3)
    run.predict(X[:3], guarantee=0.9, samples=20)
    with pytest.raises(ValueError, match=r"guarantee is the probability that is guaranteed, between 0 and 1"):
        run.predict(X[:3], guarantee=90)
    with pytest.raises(ValueError, match=r"give it or guarantee=0.9, not both"):
        run.predict(X[:3], guarantee=0.9, level=0.9)
    several = trained(data_of(REAL, 15))
    several.targets = ("rent", "price")
    with pytest.raises(ValueError, match="there are 15 of rent, 15 of price"):
        several.predict(X[:3], guarantee=0.95)
    stored = json.loads((tmp_path / GUARANTEE).read_text())
    (tmp_path / GUARANTEE).write_text(json.dumps(stored | {"draws": "many"}))
    with pytest.raises(FileFormatError, match=r"guarantee.json cannot be read"):
        bnn.open_run(tmp_path)


def test_fit_keeps_it_in_its_folder(tmp_path: pathlib.Path) -> None:
    data = data_of(REAL)
    net = torch.nn.Linear(2, 2)
    bnn.fit(net, data, epochs=1, out=tmp_path, progress=False)
    run = bnn.open_run(tmp_path, net=torch.nn.Linear(2, 2))
    assert run.guarantee is not None
    assert run.guarantee.rows == 84
    assert len(run.predict(X[:4], guarantee=0.5)) == 4
