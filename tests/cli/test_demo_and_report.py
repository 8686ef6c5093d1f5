"""`bayesianize demo` and `bayesianize report`: the files they leave, what they print, and mistakes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch

from bnn.cli import console, demo
from bnn.cli.app import run
from bnn.cli.report import only_runs
from bnn.evaluation import Evaluation
from bnn.train import Recipe, load_run, run_recipe

TINY: dict[str, Any] = {
    "data": {"name": "digits", "validation": 0.1, "first": 150},
    "net": {"name": "fcn", "hidden": [8]},
    "schedule": {"epochs": 1},
}


def tiny(name: str, seed: int = 0, quick: bool = False) -> Recipe:
    method = {} if name == "Deterministic" else {"method": {"inference": "ffg", "init_sd": 0.1}}
    return Recipe.from_dict(TINY | method | {"seed": seed})


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "recipe_of", tiny)
    monkeypatch.setattr(demo, "CORRUPTIONS", {"contrast": [1]})
    monkeypatch.setattr(demo, "OOD", ("noise",))


def test_four_recipes_that_train_equally_long() -> None:
    recipes = {name: demo.recipe_of(name, seed=3) for name in demo.METHODS}
    assert list(recipes) == ["Deterministic", "Deep ensemble", "Compressed ensemble", "FFG-U + Laplace"]
    assert [one.method["inference"] for one in recipes.values()] == ["deterministic", "deterministic", "ffg-u", "ffg-u"]
    assert [one.members for one in recipes.values()] == [1, 3, 3, 1]
    assert [one.laplace is not None for one in recipes.values()] == [False, False, False, True]
    for one in recipes.values():
        assert (one.data["name"], one.seed, one.net) == ("digits", 3, recipes["Deterministic"].net)
        assert one.schedule.epochs + (one.pretrain.epochs if one.pretrain else 0) == 30
    short = demo.recipe_of("FFG-U + Laplace", quick=True)
    assert (short.pretrain.epochs, short.schedule.epochs) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("small_demo")
def test_a_demo(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    out = tmp_path / "demo"
    assert run(["demo", "--out", str(out), "--seed", "2"]) == 0
    captured = capsys.readouterr()
    assert "[1/4] Deterministic: training" in captured.err
    assert "[4/4] FFG-U + Laplace: training" in captured.err
    assert f"{out}/report.html" in captured.err
    for name in demo.METHODS:
        found = Evaluation.load(demo.folder_of(out, name) / "evaluation.json")
        assert list(found.ood) == ["noise"]
        assert [one.kind for one in found.corruptions] == ["contrast"]
        assert found.time is not None
        assert load_run(demo.folder_of(out, name)).recipe.seed == 2
        assert name in captured.out
        assert f"{found.metrics['accuracy'].value:.1%}".replace("%", " %") in captured.out
    page = (out / "report.html").read_text()
    assert "Four methods on handwritten digits" in page
    assert page.count('class="gain"') == 1
    assert len(list((out / "plots").glob("*.png"))) > 5
    assert torch.get_num_threads() == threads
    assert run(["demo", "--out", str(out), "--seed", "2", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert "of the parameters" in printed["gain"]
    assert list(printed["runs"]) == list(demo.METHODS)
    assert printed["report"] == str(out / "report.html")
    assert captured.err == ""
    assert run(["demo", "--out", str(out), "--seed", "3"]) == 2
    assert "seed was 2, is now 3" in capsys.readouterr().err


def test_a_demo_needs_a_folder(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["demo", "--out", str(tmp_path / "file")]) == 2
    assert "is a file; --out names a folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("reported")
    for name in ("Deterministic", "FFG-W"):
        run_recipe(tiny(name), folder / name.lower(), progress=False)
    assert run(["evaluate", str(folder / "ffg-w"), "--ood", "noise", "--resamples", "30", "--quiet"]) == 0
    return [str(folder / "deterministic"), str(folder / "ffg-w")]


@pytest.mark.slow
def test_a_report_evaluates_what_is_not(
    runs: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    options = ["--title", "Mine <b>", "--plots", str(tmp_path / "plots"), "--format", "png,svg"]
    assert run(["report", *runs, "--out", str(page), *options]) == 0
    captured = capsys.readouterr()
    assert "deterministic is not evaluated yet" in captured.err
    assert "ffg-w is not" not in captured.err
    assert "Mine &lt;b&gt;" in page.read_text()
    endings = [file.suffix for file in (tmp_path / "plots").iterdir()]
    assert endings.count(".png") == endings.count(".svg") > 3
    assert "deterministic" in captured.out
    assert "ffg-w" in captured.out
    before = page.read_text()
    assert run(["report", *runs, "--out", str(page), "--title", "Mine <b>", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed["comparisons"][0]["runs"]) == ["deterministic", "ffg-w"]
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "page.pdf"], "the page is an .html file, got --out page.pdf; try --out page.html"),
        (["--out", "none/page.html"], "cannot write none/page.html: there is no folder for it"),
        (["--format", "gif"], "unknown format 'gif'; expected one of png, svg, pdf"),
    ],
)
def test_mistakes_before_anything_is_done(
    options: list[str], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert run(["report", "run", *options]) == 2
    assert message in capsys.readouterr().err
    assert run(["report", "run", "rum"]) == 2
    assert "holds no finished run" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_report_leaves_out_what_is_no_run(
    runs: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "page.txt").write_text("")
    given = [tmp_path / "plots", *map(pathlib.Path, runs), tmp_path / "page.txt"]
    assert only_runs(given) == [pathlib.Path(one) for one in runs]
    assert f"hold no run: {tmp_path / 'plots'}, {tmp_path / 'page.txt'}" in capsys.readouterr().err
    assert only_runs(given[:1]) == given[:1]  # nothing else is there: a mistake later on
    assert run(["report", *runs, "--plots", str(tmp_path / "page.txt")]) == 2
    assert "--plots names a folder" in capsys.readouterr().err


def test_no_screen_no_browser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr(console.typer, "launch", opened.append)
    monkeypatch.setattr(console.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    console.open_page(pathlib.Path("page.html"))
    assert not opened
    assert "open page.html yourself" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":0")
    console.open_page(pathlib.Path("page.html"))
    assert opened == [str(pathlib.Path("page.html").absolute())]
