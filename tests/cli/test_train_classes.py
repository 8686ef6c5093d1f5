"""`bayesianize train` of rare classes: who is never predicted is said, and `--class-weights` helps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from train_data import train

import bnn
from bnn.cli import app

ARGS = ("--data", "churn.csv", "--target", "churned", "--epochs", "2", "--pretrain-epochs", "4", "--hidden", "8", "-q")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CSV file of 600 rows, 60 of them `ja`, with one weak feature."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal() + 0.6 * (i % 10 == 0), rng.normal(), "ja" if i % 10 == 0 else "nein") for i in range(600)]
    lines = ["a,b,churned", *(f"{a:.4f},{b:.4f},{label}" for a, b, label in rows)]
    (tmp_path / "churn.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_summary_says_who_is_never_predicted_and_so_does_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    ended = train(*ARGS, "--out", "run")
    text = " ".join(ended.out.split())
    assert "balanced accuracy 50.0 %" in text
    assert "of the validation inputs) is never predicted: train with --class-weights balanced" in text
    found = train(*ARGS, "--out", "run", "--json").json["classes"]
    assert (found["never_predicted"], found["balanced_accuracy"], found["class_weights"]) == (["ja"], 0.5, None)
    assert app.run(["evaluate", "run", "-q", "--resamples", "20", "--no-time"]) == 0
    assert "(10 % of the test inputs) is never predicted" in capsys.readouterr().out


def test_balanced_weights_are_trained_with_and_said() -> None:
    ended = train(*ARGS, "--out", "run", "--class-weights", "balanced")
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "weights ja 5" in text
    assert "probabilities are those of reweighted classes" in text
    assert "never predicted" not in text
    run = bnn.open_run("run")
    assert run.recipe.class_weights == "balanced"
    counts = run.data().train.y.bincount()
    assert run.likelihood.class_weights.tolist() == pytest.approx((counts.sum() / (2 * counts)).tolist())


def test_weights_by_name() -> None:
    ended = train(*ARGS, "--out", "run", "--class-weights", "ja=5, nein=1")
    assert ended.code == 0, ended.err
    ja, nein = bnn.open_run("run").likelihood.class_weights.tolist()
    assert ja == pytest.approx(5 * nein)
    assert bnn.open_run("run").recipe.class_weights == {"ja": 5.0, "nein": 1.0}


MISTAKES = [
    ("jaa=3", "there is no class 'jaa' (did you mean 'ja'?); there are 'ja', 'nein'"),
    ("ja=-1", "the weight of class 'ja' must be a finite number, 0 or more"),
    ("ja=0,nein=0", "0 for every class"),
    ("5,1", "--class-weights is balanced, or each class once with its weight"),
    ("ja=much", "--class-weights is balanced, or each class once with its weight"),
    ("ja=1,ja=2", "--class-weights is balanced, or each class once with its weight"),
]


@pytest.mark.parametrize(("typed", "message"), MISTAKES)
def test_mistakes(typed: str, message: str) -> None:
    ended = train(*ARGS, "--out", "run", "--class-weights", typed)
    assert ended.code == 2
    assert message in ended.err
    assert not Path("run").exists()


def test_real_targets_have_no_classes() -> None:
    ended = train("--data", "churn.csv", "--target", "a", "--drop", "churned", "--class-weights", "balanced")
    assert ended.code == 2
    assert "class weights are for the likelihood categorical" in ended.err
