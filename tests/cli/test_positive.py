"""`--positive` and several targets, end to end: train, evaluate, predict, guarantee, report, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from predict_runs import command
from train_data import train

import bnn
from bnn.cli import app
from bnn.train.step import Sampling

QUICK = ("--epochs", 2, "--pretrain-epochs", 10, "--hidden", 8)
HINT = "the targets 'rent', 'area' are all positive and skewed; --positive trains on a log scale"


def rents(folder: Path, rows: int = 200) -> Path:
    """A CSV file: log `rent` = 6 + `size` and noise of sd 0.3, `area` = exp(3 + 0.5 `size`) and little noise."""
    rng = np.random.default_rng(1)
    sizes, noise = rng.normal(size=rows), rng.normal(size=(rows, 2))
    rent, area = np.exp(6 + sizes + 0.3 * noise[:, 0]), np.exp(3 + 0.5 * sizes + 0.05 * noise[:, 1])
    lines = ["size,rent,area", *(f"{s:.5f},{a:.4f},{b:.4f}" for s, a, b in zip(sizes, rent, area, strict=True))]
    path = folder / "rents.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("positive")
    table = rents(folder)
    flags = ("--target", "rent", "--drop", "area", "--positive", "--guarantee")
    ended = train("--data", table, *flags, "--out", folder / "run", *QUICK)
    assert ended.code == 0, ended.err
    assert "regression of rent on a log scale, " in ended.err
    assert "hint" not in ended.out
    return folder / "run"


def test_predictions_are_of_lognormals(run: Path) -> None:
    found = bnn.open_run(run)
    assert found.target is not None
    assert found.target.log
    assert found.targets == ("rent",)
    x = found.preparation(run.parent / "rents.csv")
    with Sampling(found.network, "weight").in_force():
        generator = torch.Generator().manual_seed(0)
        drawn = bnn.predict(found.network, x, None, found.likelihood, generator, keep_samples=True)
    m, sd = found.target.mean[0], found.target.sd[0]
    means, sds = found.likelihood.components(drawn.samples)
    each = torch.distributions.LogNormal(means.double() * sd + m, sds.double() * sd)
    table = found.predict(run.parent / "rents.csv", level=0.8)
    np.testing.assert_allclose(table["mean"], each.mean.mean(0)[:, 0].detach(), rtol=1e-3)
    np.testing.assert_allclose(table["aleatoric"], each.variance.mean(0).sqrt()[:, 0].detach(), rtol=1e-3)
    np.testing.assert_allclose(table["epistemic"], each.mean.std(0, correction=0)[:, 0].detach(), rtol=2e-2)
    for end, level in (("low", 0.1), ("high", 0.9)):
        at = each.cdf(torch.tensor(table[end])[:, None]).mean(0)[:, 0].detach()
        np.testing.assert_allclose(at, level, atol=2e-3)
    assert min(table["low"]) > 0


def test_guaranteed_intervals_are_those_of_the_logarithm(run: Path) -> None:
    """Of 50 rows, ceil(51 * 0.9) = 46 are inside, as the order of targets is the same on either scale."""
    ended = command(run, run.parent / "rents.csv", "--guarantee", 0.9, "--json")
    assert ended.code == 0, ended.err
    data = bnn.open_run(run).data()
    aside = data.target.own_units(data.guarantee.y).numpy()
    of_file = np.loadtxt(run.parent / "rents.csv", delimiter=",", skiprows=1)[:, 1]
    chosen = np.isclose(aside, of_file, rtol=1e-6).any(axis=0)
    assert chosen.sum() == 50
    rows = np.array([[row["low"], row["high"]] for row in ended.json["rows"]])
    assert (rows[:, 0] > 0).all()
    inside = (rows[:, 0] * (1 - 1e-6) <= of_file) & (of_file <= rows[:, 1] * (1 + 1e-6))
    assert inside[chosen].sum() == 46
    assert ended.json["targets"] == ["rent"]


def test_evaluation_and_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["evaluate", str(run)]) == 0
    found = bnn.open_run(run).evaluation
    assert (found.targets, found.scale) == (("rent",), "log")
    data = bnn.open_run(run).data()
    y = data.target.own_units(data.test.y).numpy()[:, 0]
    table = bnn.open_run(run).predict(data.test)
    assert found.metrics["rmse"].value == pytest.approx(np.sqrt(np.mean((np.array(table["mean"]) - y) ** 2)), rel=0.02)
    assert app.run(["report", str(run), "--out", str(run.parent / "page.html")]) == 0
    assert (run.parent / "page.html").stat().st_size > 1000
    capsys.readouterr()


def test_a_log_scale_is_suggested_once_and_never_applied(tmp_path: Path) -> None:
    table = rents(tmp_path)
    flags = ("--data", table, "--target", "rent,area", "--test", 0.1, "--out", tmp_path / "run")
    ended = train(*flags, *QUICK)
    assert ended.code == 0, ended.err
    assert ended.out.count(HINT) == 1
    assert HINT not in ended.err
    assert "regression of rent and area, " in ended.err
    found = bnn.open_run(tmp_path / "run")
    assert not found.target.log
    ended = train(*flags, *QUICK, "--json")
    assert (ended.json["hint"], ended.json["log_scale"], ended.json["targets"]) == (HINT, False, ["rent", "area"])
    answers = found.predict([{"size": 0.5}])
    kinds = ("mean", "low", "high", "total", "aleatoric", "epistemic")
    assert list(answers.columns) == ["input", *(f"{kind}_{name}" for name in ("rent", "area") for kind in kinds)]
    assert answers.about["targets"] == ["rent", "area"]
    assert bnn.open_run(tmp_path / "run").data().targets == ("rent", "area")


def test_runs_of_older_versions_have_no_names_and_no_log_scale(tmp_path: Path) -> None:
    table = rents(tmp_path)
    assert train("--data", table, "--target", "rent,area", "--out", tmp_path / "run", *QUICK).code == 0
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    del stored["targets"], stored["target"]["log"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(stored))
    found = bnn.open_run(tmp_path / "run")
    assert (found.targets, found.target.log) == ((), False)
    assert "mean_0" in found.predict([{"size": 0.5}]).columns


def test_mistakes(tmp_path: Path) -> None:
    table = rents(tmp_path)
    table.write_text(table.read_text() + "1.0,-3,2\n")
    ended = train("--data", table, "--target", "rent", "--positive", "--out", tmp_path / "run")
    assert ended.code == 2
    assert "takes targets above 0, and 1 row has another: line 202; the first is -3 in 'rent'" in ended.err
    ended = train("--data", "digits", "--positive", "--out", tmp_path / "run")
    assert ended.code == 2
    assert "digits has no option 'positive'" in ended.err
