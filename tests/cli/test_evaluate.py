"""`bayesianize evaluate`: what it writes and prints is what `bnn.evaluate` says, and every mistake is one line."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
import torch
from PIL import Image

import bnn
from bnn.cli.app import run
from bnn.cli.evaluated_runs import corruptions_of
from bnn.cli.mistakes import Mistake
from bnn.evaluation import Evaluation
from bnn.train import Recipe, load_run, run_recipe

TINY: dict[str, Any] = {
    "data": {"name": "digits", "validation": 0.1, "first": 200},
    "net": {"name": "fcn", "hidden": [16]},
    "schedule": {"epochs": 1},
}
INDUCING = {"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4}
QUICK = ["--resamples", "30", "--quiet"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    run_recipe(Recipe.from_dict(TINY | {"method": INDUCING}), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run on a CSV file of real targets, which is gone afterwards."""
    place = tmp_path_factory.mktemp("table")
    x = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
    lines = [f"{a:.4f},{b:.4f},{2 * a - b + 10:.4f}" for a, b in x.tolist()]
    (place / "toy.csv").write_text("\n".join(["a,b,price", *lines]))
    recipe = TINY | {"data": {"csv": str(place / "toy.csv"), "target": "price"}}
    run_recipe(Recipe.from_dict(recipe), place / "run", progress=False)
    os.rename(place / "toy.csv", place / "moved.csv")
    return place


def test_the_file_and_the_json_are_what_evaluate_says(digits: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ood", "letters", "--ood", "noise", "--corruptions", "fog:1,5", "--samples", "5", "--seed", "3"]
    assert run(["evaluate", str(digits), *options, *QUICK, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)[str(digits)]
    stored = Evaluation.load(digits / "evaluation.json")
    outcome = load_run(digits)
    data = bnn.data.load("digits", validation=0.1, first=200)
    bnn.set_sampling_(outcome.net, "weight")  # as `predict` draws
    want = bnn.evaluate(
        outcome.net, data, ood=["letters", "noise"], corruptions={"fog": [1, 5]}, samples=5, seed=3, resamples=30
    )
    assert stored == want
    assert printed.pop("verdict") == want.verdict
    assert want.ood_choice is not None
    assert printed.pop("ood_choice") == {"score": want.ood_choice.score, "why": want.ood_choice.why}
    assert printed.pop("abstaining") == want.abstaining
    assert want.promise is not None
    assert printed.pop("promise_kept") == want.promise.kept
    assert printed.pop("promise_sentence") == want.promise.sentence
    assert Evaluation.from_dict(printed) == want
    assert stored.time.inputs == 200
    assert stored.time.seconds > 0
    assert stored.time.plain > 0


def test_what_is_printed(digits: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(digits), "--no-time", "--first", "50", *QUICK]) == 0
    out = capsys.readouterr().out
    found = Evaluation.load(digits / "evaluation.json")
    assert found.inputs == 50
    assert found.time is None
    assert found.table() in out
    shares = [line.split() for line in out.splitlines() if line.split()[:1] in (["50%"], ["100%"])]
    assert shares[1] == [
        "100%",
        *["{:.1f}".format(100 * found.metrics["accuracy"].value), "%"] * (1 + len(found.risk_coverage)),
    ]
    assert "selective prediction" in out
    assert out.split("most certain")[1].split()[:6] == ["accuracy", "by", "max", "probability", "by", "total"]


def test_several_runs_end_with_a_comparison(digits: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = digits.parent / "plain"
    run_recipe(Recipe.from_dict(TINY), other, progress=False)
    assert run(["evaluate", str(digits), str(other), "--no-time", *QUICK]) == 0
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.split()[:1] == ["run"])
    assert header.split() == ["run", "digits", "plain"]


def test_a_folder_of_images_from_elsewhere(digits: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for i in range(3):
        Image.effect_noise((20, 30), 50 + i).save(tmp_path / f"{i}.png")
    assert run(["evaluate", str(digits), "--ood", str(tmp_path), "--no-time", *QUICK]) == 0
    assert Evaluation.load(digits / "evaluation.json").ood[str(tmp_path)].inputs == 3


def test_data_that_moved(table: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(table / "run")
    assert run(["evaluate", folder, *QUICK]) == 2
    error = capsys.readouterr().err
    assert "the data of" in error
    assert "--data says where they are now" in error
    assert not (table / "run" / "evaluation.json").exists()
    assert run(["evaluate", folder, "--data", str(table / "moved.csv"), "--ood", "far", *QUICK]) == 0
    found = Evaluation.load(table / "run" / "evaluation.json")
    assert (found.task, list(found.ood)) == ("regression", ["far"])
    assert "RMSE by total" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ood", "leters"], "neither a folder of images nor the name of a data set"),
        (["--corruptions", "fogg"], "unknown corruption 'fogg' (did you mean 'fog'?)"),
        (["--corruptions", "6"], "severities 1 to 5"),
        (["--corruptions", "fog:x"], "kind:severities"),
        (["--data", "x.csv"], "named set 'digits'"),
        (["--samples", "-1"], "Invalid value"),
    ],
)
def test_mistakes(digits: pathlib.Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir(digits))
    assert run(["evaluate", str(digits), *options, *QUICK]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert sorted(os.listdir(digits)) == before


def test_no_run_there(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([], None),
        (["all"], "all"),
        (["1,5", "3"], [1, 3, 5]),
        (["fog,snow"], {"fog": [1, 2, 3, 4, 5], "snow": [1, 2, 3, 4, 5]}),
        (["fog:2", "snow"], {"fog": [2], "snow": [1, 2, 3, 4, 5]}),
    ],
)
def test_corruptions_by_words(given: list[str], want: Any) -> None:
    assert corruptions_of(given) == want


def test_severities_are_checked() -> None:
    with pytest.raises(Mistake, match=r"severities 1 to 5, .* got '0'"):
        corruptions_of(["0"])
