"""A report of one run: the plain network that it began with, once, scored on all that the run was scored on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import bnn
from bnn.cli import app

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module", params=["regression", "classification"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(0)
    real = request.param == "regression"
    lines = [
        f"{a:.3f},{b:.3f},{1e5 + 2e4 * a:.1f}" if real else f"{a:.3f},{b:.3f},{'dear' if a + b > 0 else 'cheap'}"
        for a, b in rng.normal(size=(200, 2))
    ]
    (folder / "t.csv").write_text("\n".join(["a,b,price", *lines]) + "\n")
    options = ["--target", "price", "--epochs", "2", "--pretrain-epochs", "2", "--hidden", "8", "--quiet", "--json"]
    assert app.run(["train", "--data", str(folder / "t.csv"), *options, "--out", str(folder / "run")]) == 0
    return folder / "run"


def compared(run: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str, str]:
    """The numbers of both, the page, and what was said."""
    page = run.parent / "report.html"
    capsys.readouterr()
    assert app.run(["report", str(run), "--out", str(page), "--quiet", "--json"]) == 0
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)["comparisons"]
    assert list(found["runs"]) == ["plain network of run", "run"]
    return found["runs"], page.read_text(), printed.err


def test_it_is_there_without_other_inputs_and_with_them(run: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, page, _ = compared(run, capsys)
    plain, own = runs["plain network of run"], runs["run"]
    measured = {name for name, one in own.items() if one["value"] is not None}
    assert {name for name, one in plain.items() if one["value"] is not None} == measured - {"epistemic"}
    assert plain["draws"]["value"] == 1
    assert not any(name.startswith("auroc") for name in plain)
    assert plain["parameters"]["value"] == bnn.Evaluation.load(run / "evaluation.json").size.plain
    assert "its training is the first stage of <b>run</b>" in page

    assert app.run(["evaluate", str(run), "--ood", "far", "--quiet", "--json"]) == 0
    runs, _, _ = compared(run, capsys)
    scores = [
        name for name, one in runs["plain network of run"].items() if "auroc" in name and one["value"] is not None
    ]
    assert scores


def test_other_inputs_that_cannot_be_read_again_are_left_out(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = bnn.open_run(run)
    mine = {"mine": torch.randn(20, 2)}
    found = bnn.evaluate(opened.network, opened.data(), ood=mine, likelihood=opened.likelihood, resamples=50)
    found.save(run / "evaluation.json")
    runs, _, said = compared(run, capsys)
    assert "the plain network is shown without out-of-distribution inputs: ood 'mine' is neither a folder" in said
    assert any("auroc" in name and one["value"] is not None for name, one in runs["run"].items())
    assert runs["plain network of run"]["nll"]["value"] is not None
