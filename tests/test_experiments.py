"""Experiments: cases run once, survive interruptions and say where they come from; the page is what the files say."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import math
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bnn

ROOT = pathlib.Path(__file__).parents[1]
CASE = """
title = "Squares"
asks = "What is x squared?"
experiment = "toy:square"
says = "The square of 3 is {x=3 seed=0: nll}, that of 9 is {x=9 seed=0: nll}; {x=2 seed=0: paired_nll}."
limits = "Small numbers."
[fixed]
power = 2
[[grid]]
x = [1, 2, 3]
seed = [0, 1]
[baseline]
x = 1
[table]
rows = "x"
metrics = { nll = "NLL", accuracy = "%" }
paired = [2]
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of experiments/."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.fixture
def toy(load, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """A case whose experiment notes its calls, and ends as `toy.error` says at the call number `toy.at`."""
    load("case")
    module = types.SimpleNamespace(calls=[], error=None, at=None)

    def square(settings: dict[str, Any]) -> dict[str, Any]:
        module.calls.append(settings)
        if module.error and len(module.calls) in module.at:
            raise module.error
        x = float(settings["x"] ** settings["power"])
        per_input = {
            "nll": np.array([x - settings["x"], x + settings["x"]]),
            "accuracy": np.array([True, settings["x"] > 1]),
        }
        return {name: float(scores.mean()) for name, scores in per_input.items()} | {"per_input": per_input}

    module.square = square
    module.case = tmp_path / "squares.toml"
    module.case.write_text(CASE)
    module.out = tmp_path / "results"
    module.run = lambda *more: load("run").main([str(module.case), "--out", str(module.out), *more])
    module.stored = lambda: json.loads((module.out / "squares.json").read_text())["runs"]
    monkeypatch.setitem(sys.modules, "experiments.toy", module)
    return module


def test_an_interrupted_case_goes_on_where_it_was(toy) -> None:
    toy.error, toy.at = KeyboardInterrupt(), [4]
    with pytest.raises(KeyboardInterrupt):
        toy.run()
    assert list(toy.stored()) == ["x=1 seed=0", "x=1 seed=1", "x=2 seed=0"]
    toy.run()
    assert len(toy.calls) == 7  # six runs, one of them twice
    assert list(toy.stored()) == [f"x={x} seed={seed}" for x in (1, 2, 3) for seed in (0, 1)]
    toy.run()
    assert len(toy.calls) == 7


def test_processes_side_by_side_repeat_nothing(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    own = toy.square

    def square(settings: dict[str, Any]) -> dict[str, Any]:
        if not toy.calls:
            toy.calls.append("another process begins")
            toy.run("--only", "x=2")
        return own(settings)

    monkeypatch.setattr(toy, "square", square)
    toy.run()
    assert len(toy.calls) == 1 + 6


def test_a_crash_while_writing_leaves_the_records_as_they_were(toy, load, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.run("--only", "x=1")
    before = (toy.out / "squares.json").read_bytes()

    def crash(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(load("records").os, "replace", crash)
        with pytest.raises(OSError, match="the disk is full"):
            toy.run()
    assert (toy.out / "squares.json").read_bytes() == before
    assert [path.name for path in toy.out.glob(".*.tmp")] == []


def test_records_say_where_they_come_from(toy, load) -> None:
    toy.run("--only", "x=2", "seed=1")
    (record,) = toy.stored().values()
    assert record["settings"] == {"power": 2, "x": 2, "seed": 1}
    assert record["metrics"] == {"nll": 4.0, "accuracy": 1.0}
    assert record["versions"].keys() == {"bnn", "torch", "python"}
    assert record["versions"]["torch"] == torch.__version__
    assert record["commit"] == load("records").commit()
    assert record["threads"] == torch.get_num_threads()
    assert record["seconds"] >= 0


def test_runs_whose_settings_changed_are_open_again(toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy.run("--only", "seed=0")
    toy.run("--list")
    assert "3 of 6 runs are open: about 0 minutes" in capsys.readouterr().out
    toy.case.write_text(CASE.replace("power = 2", "power = 3"))
    toy.run("--list")
    assert "6 of 6 runs are open: ?" in capsys.readouterr().out
    toy.run("--only", "x=2", "seed=0")
    assert toy.stored()["x=2 seed=0"]["metrics"]["nll"] == 8.0
    before = len(toy.calls)
    toy.run("--only", "x=2", "seed=0", "--again")
    assert len(toy.calls) == before + 1


def test_what_is_missing_is_skipped_with_a_word(toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy.error, toy.at = FileNotFoundError("there is no mlp: train it"), [1, 3]
    toy.run()
    assert "skipped 2 runs: there is no mlp: train it" in capsys.readouterr().out
    assert list(toy.stored()) == ["x=1 seed=1", "x=2 seed=1", "x=3 seed=0", "x=3 seed=1"]
    with pytest.raises(SystemExit, match="expected axis=value"):
        toy.run("--only", "y=1")


def test_paired_differences_are_those_of_the_same_inputs(toy) -> None:
    toy.run()
    stored = toy.stored()
    assert "paired" not in stored["x=1 seed=0"]
    gaps = np.array([6.0, 12.0]) - np.array([0.0, 2.0])
    found = stored["x=3 seed=1"]["paired"]
    assert found["with"] == "x=1 seed=1"
    assert found["nll"] == pytest.approx([gaps.mean(), gaps.std(ddof=1) / math.sqrt(2)])
    assert found["accuracy"] == pytest.approx([0.5, 0.5])


def test_differences_of_other_runs_are_taken_out(toy, load) -> None:
    """A record that was run again elsewhere comes without its scores: what lies here is of the older run."""
    toy.run()
    path, key = toy.out / "squares.json", "x=3 seed=1"
    stored = json.loads(path.read_text())
    stored["runs"][key]["metrics"]["nll"] += 1.0
    path.write_text(json.dumps(stored))
    toy.run()
    assert "paired" not in toy.stored()[key]
    assert "paired" in toy.stored()["x=2 seed=1"]
    toy.run("--again")
    assert "paired" in toy.stored()[key]


def test_paired_differences_of_all_results_are_those_of_their_runs(load) -> None:
    are_of = load("records").are_of
    for path in sorted((ROOT / "experiments" / "results").glob("*.json")):
        runs = json.loads(path.read_text()).get("runs", {})
        pairs = {key: run["paired"] for key, run in runs.items() if isinstance(run, dict) and "paired" in run}
        wrong = [key for key, pair in pairs.items() if not are_of(pair, runs[key], runs[pair["with"]])]
        assert not wrong, (path.name, wrong)


def test_a_commit_is_dirty_where_code_differs_from_it(load, tmp_path: pathlib.Path) -> None:
    commit = load("records").commit

    def git(*arguments: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("x = 1\n")
    git("add", "-A")
    git("commit", "-m", "one")
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "experiments" / "results").mkdir(parents=True)
    (tmp_path / "experiments" / "results" / "new.json").write_text("{}")
    assert commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("x = 2\n")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_no_repository_is_no_error(load, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert load("records").commit(tmp_path) == "unknown"


def test_a_page_shows_means_spreads_and_differences(toy, load) -> None:
    toy.run()
    case = load("case").Case.read(toy.case)
    lines = load("pages").section(case, toy.stored())
    assert "| 3 | 9.000 | 100.0 |" in lines
    assert "The square of 3 is 9.000, that of 9 is -; +3.000 ± 1.000." in lines
    toy.case.write_text(CASE.replace("seed = [0, 1]", "seed = [0]"))
    case = load("case").Case.read(toy.case)
    lines = load("pages").section(case, {key: run for key, run in toy.stored().items() if "seed=0" in key})
    assert "| *2, less 1* | +3.000 ± 1.000 | +50.0 ± 50.0 |" in lines


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("power = 2", "power = 2\n[extra]\na = 1", r"unknown \['extra'\]"),
        ('asks = "What is x squared?"', "", r"\['asks'\] missing"),
        ("[baseline]", "[[grid]]\nx = [3]\nseed = [1]\n[baseline]", "the grids overlap"),
    ],
)
def test_a_case_with_mistakes_is_refused(toy, load, old: str, new: str, message: str) -> None:
    toy.case.write_text(CASE.replace(old, new))
    with pytest.raises(ValueError, match=message):
        load("case").Case.read(toy.case)


def test_a_case_may_say_more_about_its_runs(toy, load) -> None:
    toy.run()
    toy.total = lambda case, runs: [f"{case.title}: {sum(run['metrics']['nll'] for run in runs):g} in all"]
    toy.case.write_text(CASE.replace("[fixed]", 'further = "toy:total"\n[fixed]'))
    lines = load("pages").section(load("case").Case.read(toy.case), toy.stored())
    assert lines.index("Squares: 28 in all") > lines.index("| 3 | 9.000 | 100.0 |")


def test_the_results_page_is_what_the_files_say(load) -> None:
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == load("pages").page()


def test_every_case_has_its_experiment_and_picture(load) -> None:
    found = [load("case").Case.read(path) for path in sorted((ROOT / "experiments" / "cases").glob("*.toml"))]
    assert found
    for case in found:
        assert callable(case.function())
        assert not case.picture or case.picture["kind"] in load("pictures").PICTURES


@pytest.mark.parametrize("name", ["case", "coverage_sets", "coverage_verdicts", "pages", "records", "run"])
def test_doctests(load, name: str) -> None:
    found = doctest.testmod(load(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_scores_are_those_of_the_library(load) -> None:
    scores = load("scores")
    logits, labels = 3 * torch.randn(200, 4), torch.randint(4, (200,))
    probs = logits.double().softmax(1)
    found = scores.class_scores(probs, labels, (probs[:100], labels[:100]))
    means = {name: one.mean() for name, one in found.pop("per_input").items()}
    assert {name: found[name] for name in means} == pytest.approx(means)
    assert found["nll"] == pytest.approx(float(F.cross_entropy(logits.double(), labels)))
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert found["ece"] == pytest.approx(bnn.metrics.ece(probs, labels, bins=15))
    expected = bnn.metrics.nll_after_temperature(probs, labels, probs[:100], labels[:100])
    assert found["nll_after_temperature"] == pytest.approx(expected, rel=1e-6)


def test_detection_and_cost_of_a_network(load) -> None:
    scores = load("scores")
    plain = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    net = copy.deepcopy(plain)
    bnn.bayesianize_(net, "ffg", init_sd=0.5)
    near, far = (bnn.predict(net, scale * torch.randn(50, 6), samples=8) for scale in (0.1, 10.0))
    found = scores.detection_scores(near, {"far": far})
    assert found["auroc_entropy_far"] == bnn.metrics.auroc(near.total, far.total)
    assert found["auroc_mutual_information_far"] == bnn.metrics.auroc(near.epistemic, far.epistemic)
    cost = scores.cost_scores(net, plain, torch.randn(5, 6), samples=2, rounds=2)
    assert cost["parameters"] == 2 * (7 * 16 + 17 * 3)
    assert cost["bytes"] == 4 * cost["parameters"]
    assert cost["share"] == 2
    assert cost["relative_time"] > 0


# ---- after_conversion ------------------------------------------------------------------------------------------------


def small() -> tuple[nn.Module, list[str], torch.Tensor]:
    layers = [
        nn.Conv2d(2, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(192, 20),
        nn.Linear(20, 4),
    ]
    mixed = torch.randn(2, 2, dtype=torch.double).float()
    x = torch.einsum("ij,njhw->nihw", mixed, torch.randn(64, 2, 8, 8).cumsum(3))  # neighbours are alike
    return nn.Sequential(*layers).eval(), ["2", "5"], x


def test_uniform_sizes_are_the_largest_within_the_fraction(load) -> None:
    module = load("after_conversion")
    net, names, x = small()
    for start in ("plain", "split", "sequential"):
        made = module.converted(net, names, 0.5, start, x)
        for name in names:
            plain, layer = net.get_submodule(name), made.get_submodule(name)
            rank, kernel = layer.z_row.shape[0], module.KERNELS.get(start, "auto")
            assert module.count(layer) == module.cost(plain, rank, kernel) <= 0.5 * module.count(plain)
            assert module.cost(plain, rank + 1, kernel) > 0.5 * module.count(plain)


def test_a_budget_has_the_parameters_of_uniform_sizes(load) -> None:
    module = load("after_conversion")
    net, names, x = small()
    uniform, chosen = (module.count(module.converted(net, names, 0.5, start, x)) for start in ("sequential", "budget"))
    assert 0.9 * uniform < chosen <= uniform


@pytest.mark.parametrize(("start", "plain"), [("weighted", "plain"), ("both", "split")])
def test_weighted_starts_lose_less_of_a_layers_outputs(load, start: str, plain: str) -> None:
    module = load("after_conversion")
    net, _, x = small()

    def lost(kind: str) -> float:
        made = module.converted(net, ["2"], 0.4, kind, x)
        assert made[2].z_row.shape[0] < 8
        with torch.no_grad():
            h = net[:2](x)
            return float((F.conv2d(h, made[2].weight, made[2].bias) - net[2](h)).square().mean())

    assert lost(start) < lost(plain)


def test_weighing_leaves_the_original_alone(load) -> None:
    module = load("after_conversion")
    net, names, x = small()
    before = copy.deepcopy(net.state_dict())
    module.converted(net, names, 0.4, "both", x)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "experiments").glob("*.py")))
def test_every_experiment_can_be_imported(load, name: str) -> None:
    try:
        load(name)
    except ModuleNotFoundError as error:
        if error.name not in {"pyro", "ivon", "transformers"}:  # which only the experiment itself needs
            raise
