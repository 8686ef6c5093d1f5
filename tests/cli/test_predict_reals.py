from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predict_runs import command, expected, rows_of, trained, write_table
from scipy.stats import norm

from bnn.functional.noise import tails
from bnn.likelihoods import HeteroscedasticGaussian
from bnn.train import load_run
from bnn.train.build import build_data

FCN = {"name": "fcn", "hidden": [8]}


@pytest.fixture(scope="module", params=["gaussian", "heteroscedastic"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reals")
    data = {"csv": str(write_table(folder / "rows.csv")), "target": "price", "drop": ["id", "label"]}
    schedule = {"epochs": 8, "lr": 0.05, "batch_size": 20}
    return trained(folder / request.param, data, FCN, likelihood=request.param, schedule=schedule)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets of very different sizes, in arrays."""
    folder, random = tmp_path_factory.mktemp("several"), np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    y = np.stack([1e4 + 100 * x[:, 0], 0.01 * x[:, 1]], 1)
    np.savez(folder / "both.npz", x=x, y=y)
    np.save(folder / "new.npy", random.normal(size=(9, 3)))
    return trained(folder / "run", {"arrays": str(folder / "both.npz"), "validation": 0.2}, FCN)


def gaussians(run: Path, prediction: Any) -> tuple[Any, Any]:
    """Means and sds (K, N, D) of the draws in own units."""
    found = load_run(run)
    assert found.target is not None
    if isinstance(found.likelihood, HeteroscedasticGaussian):
        means, sds = found.likelihood.split(prediction.samples, dim=2)
    else:
        means, sds = prediction.samples, found.likelihood.sd().expand_as(prediction.samples)
    mean, sd = np.array(found.target.mean), np.array(found.target.sd)
    return means.double().numpy() * sd + mean, sds.double().detach().numpy() * sd


def below(run: Path, value: float, means: Any, sds: Any) -> float:
    """The probability of a target below a value, for means and sds (K,) of draws and the tails of the run's noise."""
    p, c = (np.array(part)[:, None] for part in tails(load_run(run).likelihood.df()))
    return float((p * norm.cdf(value, means, sds * c)).sum(0).mean())


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_mean_interval_and_sds_in_own_units(run: Path, level: float) -> None:
    table = run.parent / "rows.csv"
    rows = rows_of(run, table, "--level", level, "--samples", 6)
    means, sds = gaussians(run, expected(run, load_run(run).preparation(table), 6))
    means, sds = means[..., 0], sds[..., 0]
    assert list(rows[0]) == ["input", "mean", "low", "high", "total", "aleatoric", "epistemic"]
    for i, row in enumerate(rows):
        assert row["mean"] == pytest.approx(means[:, i].mean(), rel=1e-6)
        assert row["aleatoric"] == pytest.approx(math.sqrt(np.square(sds[:, i]).mean()), rel=1e-4)
        assert row["epistemic"] == pytest.approx(means[:, i].std(), rel=1e-3)
        assert row["total"] ** 2 == pytest.approx(row["aleatoric"] ** 2 + row["epistemic"] ** 2, rel=1e-5)
        for end, share in (("low", (1 - level) / 2), ("high", (1 + level) / 2)):
            assert below(run, row[end], means[:, i], sds[:, i]) == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("df", [3.0, 20.0, math.inf])
def test_tails_are_named_as_sds_do_not_tell_them(run: Path, tmp_path: Path, df: float) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    stored = json.loads((other / "run.json").read_text())
    stored["likelihood"]["learned"]["_tails"] = 1 / df
    (other / "run.json").write_text(json.dumps(stored))
    ended = command(other, run.parent / "rows.csv", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["df"] == (None if math.isinf(df) else pytest.approx(df, rel=1e-3))
    line = (
        "noise: heavier tails than a Gaussian's, as Student's t with 3 degrees of freedom; low and high allow for them"
    )
    assert (line in ended.err) == (df == 3)


def test_the_default_level_and_the_surroundings(run: Path) -> None:
    table = run.parent / "rows.csv"
    ended = command(run, table, "--json")
    assert (ended.json["level"], ended.json["task"], ended.json["draws"]) == (0.9, "regression", 20)
    assert ended.json["rows"] == rows_of(run, table, "--level", 0.9)


def test_answers_are_means_or_abstentions(run: Path) -> None:
    table = run.parent / "rows.csv"
    plain = rows_of(run, table)
    threshold = sorted(row["total"] for row in plain)[50]
    for row, wanted in zip(rows_of(run, table, "--abstain-above", threshold + 1e-6), plain, strict=True):
        assert row.pop("answer") == ("abstain" if wanted["total"] > threshold + 1e-6 else wanted["mean"])
        assert row == wanted


def test_several_targets_have_columns_of_their_own(several: Path) -> None:
    new = several.parent / "new.npy"
    rows = rows_of(several, new, "--abstain-above", 1.0)
    kinds = ("mean", "low", "high", "total", "aleatoric", "epistemic", "answer")
    assert list(rows[0]) == ["input", *(f"{kind}_{target}" for target in (0, 1) for kind in kinds)]
    means, sds = gaussians(several, expected(several, load_run(several).preparation(new)))
    for i, row in enumerate(rows):
        assert row["input"] == f"row {i}"
        for target in (0, 1):
            assert row[f"mean_{target}"] == pytest.approx(means[:, i, target].mean(), rel=1e-4)
            high = below(several, row[f"high_{target}"], means[:, i, target], sds[:, i, target])
            assert high == pytest.approx(0.95, abs=1e-5)
        assert row["answer_0"] == "abstain"  # an sd of about 100
        assert row["answer_1"] == row["mean_1"]
    assert "9 inputs, 0 abstained" in command(several, new, "--abstain-above", 1.0).err  # one target is answered


def test_coverage_sets_a_threshold_for_each_target(several: Path) -> None:
    found = load_run(several)
    assert found.recipe is not None
    part = build_data(found.recipe.data).validation
    means, sds = gaussians(several, expected(several, part.inputs()))
    total = np.sqrt(means.var(0) + np.square(sds).mean(0))  # (12, 2)
    ended = command(several, several.parent / "new.npy", "--coverage", 0.5, "--json")
    assert ended.json["threshold"] == pytest.approx(np.sort(total, axis=0)[5], rel=1e-4)
    assert ended.err.count("answers 50.0 % of 12 validation inputs; their RMSE is") == 2
    for row in ended.json["rows"]:
        for target, threshold in enumerate(ended.json["threshold"]):
            silent = row[f"total_{target}"] > threshold
            assert row[f"answer_{target}"] == ("abstain" if silent else row[f"mean_{target}"])


def test_arrays_of_a_wrong_shape_and_with_holes(several: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 4)))
    np.save(tmp_path / "holes.npy", np.full((2, 3), np.nan))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    np.savez(tmp_path / "named.npz", a=np.zeros((2, 3)), b=np.zeros((2, 3)))
    (tmp_path / "cut.npy").write_bytes((several.parent / "new.npy").read_bytes()[:150])
    for name, message in (
        ("wide.npy", "wide.npy: x must have the shape (N, 3), got (2, 4)"),
        ("holes.npy", "holes.npy: x[0, 0] is nan"),
        ("none.npy", "none.npy holds no input: its array has the shape (0, 3)"),
        ("named.npz", "named.npz has no array named 'x' or 'x_test'; it has ['a', 'b']"),
        ("cut.npy", "cut.npy: expected a .npy or .npz file"),
    ):
        ended = command(several, tmp_path / name, "--out", tmp_path / "table.csv")
        assert ended.code == 2
        assert message in ended.err
    assert not (tmp_path / "table.csv").exists()


def test_an_array_run_says_what_it_takes(several: Path) -> None:
    ended = command(several, several.parent)
    assert ended.code == 2
    assert ended.err == (
        "error: this run was trained on arrays of numbers of shape (N, 3): give a .npy or .npz file; "
        f"got {several.parent}, a folder\n"
    )
