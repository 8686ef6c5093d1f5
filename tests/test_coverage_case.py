"""The case of coverage: its tables, its scores against the library's, and the verdicts that follow from its runs."""

from __future__ import annotations

import csv
import importlib
import math
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bnn

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of experiments/."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"experiments.{name}")


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_tables_are_written_as_they_are(load, tmp_path: pathlib.Path) -> None:
    table = load("coverage_sets").load("positive", 1)
    train, test = table.write(tmp_path)
    read = [list(csv.reader(path.read_text(encoding="utf-8").splitlines())) for path in (train, test)]
    assert [part[0] for part in read] == [["x0", "x1", "x2", "x3", "x4", "x5", "y"]] * 2
    assert [len(part) - 1 for part in read] == [1500, 500]
    everything = sorted(read[0][1:] + read[1][1:])
    assert everything == sorted(table.rows)
    assert all(repr(float(cell)) == cell for row in everything for cell in row)


def test_splits_differ_and_are_the_same_again(load) -> None:
    at_random = load("coverage_sets").at_random
    first, again, other = at_random(200, 0)[1], at_random(200, 0)[1], at_random(200, 1)[1]
    assert first.tolist() == again.tolist() != other.tolist()


def test_an_unknown_table_is_refused(load) -> None:
    with pytest.raises(ValueError, match="unknown table 'bostn'"):
        load("coverage_sets").load("bostn", 0)


def test_the_positive_target_is_what_its_formula_says(load) -> None:
    rows = np.array([list(map(float, row)) for row in load("coverage_sets").load("positive", 0).rows])
    x, y = rows[:, :6], rows[:, 6]
    assert y.min() > 0
    middle = 2 + np.sin(math.pi * x[:, 0]) + x[:, 1] - x[:, 2] * x[:, 3]
    for wide in (x[:, 4] < 0.5, x[:, 4] >= 0.5):
        z = (np.log(y) - middle)[wide] / (0.1 + 0.5 * x[wide, 4])
        assert abs(z.mean()) < 4 / math.sqrt(len(z))
        assert abs(z.std() - 1) < 4 / math.sqrt(2 * len(z))


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_scores_of_equal_draws_are_those_of_one_gaussian(load) -> None:
    coverage = load("coverage")
    random = np.random.default_rng(0)
    mean, sd, y = random.normal(size=(40, 1)), random.uniform(0.5, 2, size=(40, 1)), random.normal(size=(40, 1))
    outputs = replace(coverage.of_gaussian(mean, sd), components=(np.stack([mean] * 3), np.stack([sd] * 3)), draws=3)
    found = coverage.scores(outputs, y, {level: outputs.interval(level) for level in coverage.LEVELS})
    assert found["rmse"] == pytest.approx(bnn.metrics.rmse(mean, y))
    assert found["nll"] == pytest.approx(bnn.metrics.gaussian_nll(mean, sd, y))
    assert found["crps"] == pytest.approx(bnn.metrics.crps(mean, sd, y))
    for level in coverage.LEVELS:
        assert found[f"coverage_{100 * level:.0f}"] == bnn.metrics.coverage(mean, sd, y, level)
        assert found[f"width_{100 * level:.0f}"] == pytest.approx(bnn.metrics.sharpness(sd, level))
    assert {name: one.shape for name, one in found["per_input"].items()} == dict.fromkeys(
        ("nll", "crps", "squared_error"), (40,)
    )


@pytest.mark.parametrize(
    ("table", "method"),
    [("friedman", "plain"), ("friedman", "ffg-u"), ("friedman", "guarantee"), ("positive-log", "guarantee")],
)
def test_a_run_says_what_the_command_line_says(load, monkeypatch: pytest.MonkeyPatch, table: str, method: str) -> None:
    coverage = load("coverage")
    monkeypatch.setattr(load("coverage_sets"), "MADE", 240)
    monkeypatch.setitem(coverage.FLAGS, method, coverage.FLAGS[method] | {"epochs": 2})
    kept: list[tuple[Any, Any]] = []

    def run_recipe(recipe: Any, **more: Any) -> Any:
        kept.append((bnn.train.run_recipe(recipe, **more), more["data"]))
        return kept[-1][0]

    monkeypatch.setattr(coverage, "run_recipe", run_recipe)
    found = coverage.run({"data": table, "method": method, "seed": 0})
    ((run, data),) = kept
    assert len(data.train) + len(data.validation) == (130 if method == "guarantee" else 180)
    answers = run.predict(data.test, **({"guarantee": 0.9} if method == "guarantee" else {"level": 0.9}))
    y = data.target.own_units(data.test.y.double()).numpy()[:, 0]
    mean, low, high = (np.array(answers[name]) for name in ("mean", "low", "high"))
    assert found["rmse"] == pytest.approx(bnn.metrics.rmse(mean, y), rel=1e-6)
    assert found["coverage_90"] == ((low <= y) & (y <= high)).mean()
    assert found["width_90"] == pytest.approx((high - low).mean(), rel=1e-6)
    assert found["parameters"] == bnn.parameter_count(run.network)
    assert (found["rows"], found["test_rows"]) == (240, 60)
    scored = bnn.evaluate(run.network, data, likelihood=run.likelihood, resamples=1).metrics
    assert abs(found["nll"] - scored["nll"].value) < 0.2  # by draws of its own
    assert low.min() > 0 or table == "friedman"


def test_the_mlp_of_scikit_learn_is_fitted_in_units_of_the_target(load, monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = load("coverage")
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3))
    y = 1e5 + 1e4 * (x @ [1.0, -1.0, 0.5] + 0.3 * random.normal(size=400))
    cut = bnn.data.arrays(x[:300], y[:300], validation=0.1, test=(x[300:], y[300:]))
    found = coverage.mlp(cut, 0)
    assert 2500 < found["rmse"] < 4500  # the noise has an sd of 3,000
    assert found["parameters"] == 3 * 100 + 100 + 100 + 1
    assert found["coverage_90"] > 0.8


# ---- verdicts --------------------------------------------------------------------------------------------------------


def runs_of(tables: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Two splits of each table, by three methods; a table may say the coverage of ours, and its NLL gap."""
    out = []
    for name, told in tables.items():
        for method in ("plain", "ffg-u", "mlp"):
            covers = told.get("covers", (0.5, 0.8, 0.9)) if method == "ffg-u" else (0.5, 0.8, 0.9)
            shares = dict(zip(("coverage_50", "coverage_80", "coverage_90"), covers, strict=True))
            rmse = told.get("rmse", 1.0) if method == "ffg-u" else 1.0
            metrics = {"rows": told.get("rows", 5000), "test_rows": 200, "rmse": rmse, "nll": 1.0, "varying_noise": 1.0}
            metrics |= {"training_seconds": 10.0}
            for seed in (0, 1):
                record = {"settings": {"data": name, "method": method, "seed": seed}, "metrics": metrics | shares}
                if method == "ffg-u":
                    record["paired"] = {"with": "", "nll": list(told.get("gap", (-0.1, 0.03)))}
                out.append(record)
    return out


def verdict_of(load, aim: str, tables: dict[str, dict[str, Any]]) -> str:
    (line,) = [one for one in load("coverage_verdicts").verdicts(runs_of(tables), {}) if one.startswith(f"| {aim}")]
    return line


MEAN = "90 % intervals: within 3 points on average"
EVERY = "90 % intervals: within 6 points on every table"


@pytest.mark.parametrize(
    ("aim", "told", "said"),
    [
        (MEAN, {"covers": (0.5, 0.8, 0.955)}, "2.8 points | met"),  # half of 5.5: the other table is right
        (MEAN, {"covers": (0.5, 0.8, 0.83)}, "3.5 points | **missed**"),  # too little counts like too much
        (EVERY, {"covers": (0.5, 0.8, 0.955)}, "at most 5.5 points (first) | met"),
        (EVERY, {"covers": (0.5, 0.8, 0.835)}, "missed on first | **missed**"),
        (EVERY, {"covers": (0.5, 0.8, 0.835), "rows": 1000}, "at most 0.0 points (second) | met"),
        ("NLL nowhere above", {"gap": (0.05, 0.04)}, "nowhere | met"),  # two splits: 0.05 +- 0.028
        ("NLL nowhere above", {"gap": (0.06, 0.04)}, "above it on first | **missed**"),
        ("RMSE no worse", {"rmse": 0.81}, "0.900 times it (geometric mean over tables), above it on 0 of 2 | met"),
        (
            "RMSE no worse",
            {"rmse": 1.21},
            "1.100 times it (geometric mean over tables), above it on 1 of 2 | **miss",
        ),
    ],
)
def test_verdicts_follow_from_the_runs(load, aim: str, told: dict[str, Any], said: str) -> None:
    assert said in verdict_of(load, aim, {"first": told, "second": {}})


def test_a_table_has_its_gaps_in_points(load) -> None:
    tables = {"yacht": {"covers": (0.42, 0.8, 0.96), "rows": 308, "gap": (0.3, 0.4), "rmse": 2.0}}
    line = load("coverage_verdicts").each(runs_of(tables), {"yacht": "boats"})[-1]
    assert line == "| boats | 308 | -8.0 | +0.0 | +6.0 | +0.0 | - | +0.300 ± 0.283 | 2.000 | 2 of 2 |"


def test_runs_that_miss_leave_places_empty(load) -> None:
    verdicts = load("coverage_verdicts")
    runs = [run for run in runs_of({"boston": {}}) if run["settings"]["method"] == "plain"]
    assert verdicts.verdicts(runs, {}) == []
    assert verdicts.together(runs, {})[-4].endswith("| - |")
    assert verdicts.together(runs, {})[-1] == "Training took 0 minutes of one processor in all, for 2 runs."


def test_what_chance_does_to_a_gap_is_what_binomials_say(load) -> None:
    verdicts = load("coverage_verdicts")
    found = verdicts.by_set(runs_of({"boston": {}}), "plain")
    assert found["boston"].tested == 400
    shares = np.random.default_rng(0).binomial(400, 0.8, size=20_000) / 400
    assert verdicts.chance_gap(found, 80) == pytest.approx(100 * np.abs(shares - 0.8).mean(), rel=0.03)


def test_rmse_is_compared_on_the_splits_that_both_have(load) -> None:
    verdicts = load("coverage_verdicts")
    runs = runs_of({"boston": {"rmse": 2.0}})
    runs[-1]["metrics"]["rmse"] = 100.0  # the MLP's on split 1
    fewer = [run for run in runs if run["settings"] != {"data": "boston", "method": "ffg-u", "seed": 1}]
    found, others = verdicts.by_set(fewer, "ffg-u"), verdicts.by_set(fewer, "mlp")
    assert verdicts.relative_rmse(found, others) == {"boston": 2.0}


def test_published_figures_stand_beside_ours(load) -> None:
    verdicts = load("coverage_verdicts")
    lines = verdicts.published(runs_of({"boston": {"rmse": 2.5}, "friedman": {}}), {})
    assert [line for line in lines if line.startswith("| boston")] == [
        "| boston | 2.50 | 2.97 ± 0.19 | 2.80 ± 0.13 | 3.28 ± 1.00 | 1.000 | 2.46 ± 0.06 | 2.34 ± 0.02 | 2.41 ± 0.25 |"
    ]
    assert not any(line.startswith("| friedman") for line in lines)


def test_published_figures_are_of_the_uci_sets_with_their_sources(load) -> None:
    from bnn.data.named_sets.uci import UCI_SETS

    papers = load("case").toml(load("coverage_verdicts").PUBLISHED)
    for paper in papers.values():
        assert paper["source"]
        assert set(paper["rmse"]) == set(paper["nll"]) == set(UCI_SETS)
        assert all(mean > 0 or name == "naval" for name, (mean, _) in paper["rmse"].items())


def test_the_picture_has_a_panel_for_every_level(load, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    case = load("case").Case.named("coverage")
    load("promises").promises(case, runs_of({"boston": {}, "wine": {"covers": (0.4, 0.7, 0.8)}}), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000
