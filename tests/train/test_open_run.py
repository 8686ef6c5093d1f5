"""`bnn.open_run`: what it gives, that `.predict` says what the command says, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from old_run import ANSWERS, HOUSES, NEW, write_old_run

import bnn
from bnn.cli import app
from bnn.files import FileFormatError
from bnn.train import Recipe, Run, RunFolder, run_recipe
from bnn.train.runs.folder import METRICS

METHOD = {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3, "max_lamda": 0.3, "init_lamda": 0.2}
FCN = {"name": "fcn", "hidden": [8]}
QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


def trained(folder: Path, data: dict[str, Any], **more: Any) -> Path:
    values = {"data": data, "net": FCN, "method": METHOD, "schedule": {"epochs": 2, "lr": 0.02}} | more
    run_recipe(Recipe.from_dict(values), folder, **QUIET)
    return folder


def rows_of_the_command(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    assert app.run(["predict", *map(str, words), "--json", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on a table (classes and real targets), on arrays and on images, and files to predict."""
    place = tmp_path_factory.mktemp("place")
    random = np.random.default_rng(0)
    heights = random.normal(size=60)
    lines = [f"{h:.4f},{'ab'[i % 2]},{'tall' if h > 0 else 'short'},{1000 + 50 * h:.2f}" for i, h in enumerate(heights)]
    (place / "rows.csv").write_text("\n".join(["height,kind,label,price", *lines]) + "\n")
    (place / "new.csv").write_text("height,kind,id\n0.5,a,first\n-1.25,b,second\n2,a,third\n")
    table = {"csv": str(place / "rows.csv"), "validation": 0.3}
    trained(place / "label", table | {"target": "label", "drop": ["price"]})
    trained(place / "price", table | {"target": "price", "drop": ["label"]})
    x = random.normal(size=(40, 3))
    np.savez(place / "two.npz", x=x, y=x[:, :2] * [1, 100])
    trained(place / "arrays", {"arrays": str(place / "two.npz")})
    trained(place / "digits", {"name": "digits", "first": 100})
    return place


def test_what_a_run_gives(place: Path) -> None:
    run = bnn.open_run(place / "label")
    assert (run.state, run.task, run.classes) == ("finished", "classification", ("short", "tall"))
    assert run.recipe == Recipe.from_file(place / "label" / "recipe.json")
    assert run.history is not None
    assert run.history.column("epoch") == [0, 1]
    assert (run.history.best, run.history.stopped) == (None, "finished")
    assert run.history.epochs == [
        json.loads(line) for line in (place / "label" / "train" / METRICS).read_text().splitlines()
    ]
    assert run.preparation([{"height": 1.0, "kind": "a"}]).shape == (1, *run.in_shape)
    assert run.evaluation is None
    assert run.network is run.net
    assert run.data().validation is not None


def test_early_stopping_reads_back(tmp_path: Path, place: Path) -> None:
    data = {"csv": str(place / "rows.csv"), "target": "label", "drop": ["price"], "validation": 0.3}
    schedule = {"epochs": 30, "patience": 1, "lr": 0.5}
    values = {"data": data, "net": FCN, "method": METHOD, "schedule": schedule}
    run = run_recipe(Recipe.from_dict(values), tmp_path, **QUIET)
    again = bnn.open_run(tmp_path)
    assert again.history == replace(run.history, likelihood=again.likelihood, out=str(tmp_path / "train"))
    assert again.history.stopped == "patience"
    assert again.history.best is not None


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        ({"kl_weights": [1.0, 0.1]}, "kl_"),
        ({"members": 2, "method": {"inference": "deterministic"}}, "train/member1"),
        ({"members": 2, "pretrain": {"epochs": 1}}, "train"),
    ],
)
def test_the_history_is_that_of_the_main_training(
    recipe: dict[str, Any], stage: str, place: Path, tmp_path: Path
) -> None:
    data = {"csv": str(place / "rows.csv"), "target": "label", "drop": ["price"], "validation": 0.3}
    values = {"data": data, "net": FCN, "method": METHOD, "schedule": {"epochs": 2}} | recipe
    run = run_recipe(Recipe.from_dict(values), tmp_path, **QUIET)
    again = bnn.open_run(tmp_path)
    assert run.history is not None
    assert again.history is not None
    assert again.history.epochs == run.history.epochs
    assert again.history.out == run.history.out
    assert Path(again.history.out or "").relative_to(tmp_path).as_posix().startswith(stage)


FORMS: dict[str, Any] = {
    "dicts": [{"height": 0.5, "kind": "a"}, {"height": -1.25, "kind": "b"}, {"height": 2, "kind": "a"}],
    "columns": {"height": [0.5, -1.25, 2.0], "kind": ["a", "b", "a"]},
    "arrays": {"height": np.array([0.5, -1.25, 2.0]), "kind": np.array(["a", "b", "a"])},
}


@pytest.mark.parametrize("name", ["label", "price"])
def test_rows_of_a_table_in_every_form(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = bnn.open_run(place / name)
    wanted = rows_of_the_command(capsys, place / name, place / "new.csv")
    assert run.predict(place / "new.csv").to_dict() == wanted
    assert run.predict([str(place / "new.csv")]).to_dict() == wanted
    for rows in FORMS.values():
        found = run.predict(rows)
        assert found["input"] == ["row 0", "row 1", "row 2"]
        assert [dict(row, input=None) for row in found.records()] == [dict(row, input=None) for row in wanted["rows"]]
    assert run.predict(FORMS["dicts"])["total"] == [row["total"] for row in wanted["rows"]]


class Frame:
    """As much of a pandas DataFrame as is used."""

    def __init__(self, *columns: tuple[str, list[Any]]) -> None:
        self.columns, self.cells = [name for name, _ in columns], dict(columns)

    def __getitem__(self, name: str) -> Any:
        return np.array(self.cells[name], dtype=object)


def test_a_data_frame(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bnn.open_run(place / "price")
    frame = Frame(("height", [0.5, -1.25, 2.0]), ("kind", ["a", "b", "a"]))
    with pytest.raises(TypeError, match="a DataFrame, an array or a tensor; got a Frame"):
        run.predict(frame)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    assert run.predict(frame).records() == run.predict(FORMS["columns"]).records()
    with pytest.raises(ValueError, match="the column 'kind' more than once"):
        run.predict(Frame(("kind", []), ("kind", [])))


def test_a_real_data_frame(place: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = bnn.open_run(place / "price")
    frame = pandas.read_csv(place / "new.csv")
    assert run.predict(frame)["mean"] == run.predict(place / "new.csv")["mean"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 5, "seed": 3}, ["--samples", 5, "--seed", 3]),
        ({"coverage": 0.5}, ["--coverage", 0.5]),
        ({"abstain_above": 0.3, "by": "epistemic"}, ["--abstain-above", 0.3, "--by", "epistemic"]),
        ({"probs": True, "keep": ["id"]}, ["--probs", "--keep", "id"]),
    ],
)
def test_every_option_means_the_same(
    options: dict[str, Any], words: list[Any], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(place / "label", tmp_path / "run")
    run = bnn.open_run(folder)
    run.write_validation(run.data())
    assert run.predict(place / "new.csv", **options).to_dict() == rows_of_the_command(
        capsys, folder, place / "new.csv", *words
    )


def test_levels_and_thresholds_of_real_targets(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = bnn.open_run(place / "price")
    answers = run.predict(place / "new.csv", level=0.5, abstain_above=1e-9)
    assert answers.to_dict() == rows_of_the_command(
        capsys, place / "price", place / "new.csv", "--level", 0.5, "--abstain-above", 1e-9
    )
    assert answers["answer"] == ["abstain"] * 3
    assert answers.abstained == len(answers) == 3
    assert 800 < answers["mean"][0] < 1200  # in the target's own units


def test_arrays_tensors_and_parts(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, x = bnn.open_run(place / "arrays"), np.random.default_rng(1).normal(size=(5, 3))
    np.save(tmp_path / "x.npy", x)
    wanted = rows_of_the_command(capsys, place / "arrays", tmp_path / "x.npy")["rows"]
    assert run.predict(x).records() == run.predict(torch.from_numpy(x)).records() == wanted
    digits, images = bnn.open_run(place / "digits"), bnn.data.load_part("digits").x[:4]
    np.save(tmp_path / "images.npy", images.numpy())
    wanted = rows_of_the_command(capsys, place / "digits", tmp_path / "images.npy")["rows"]
    assert digits.predict(images).records() == digits.predict(images.numpy()).records() == wanted
    part = digits.data().test
    assert part is not None
    assert digits.predict(part.subset(slice(0, 4)))["class"] == digits.predict(part.x[:4])["class"]


def test_predicting_leaves_the_network_as_it_was(place: Path) -> None:
    run = bnn.open_run(place / "label")
    modes = [module.training for module in run.network.modules()]
    before, state = str(run.network), torch.get_rng_state()
    samplings = [layer.options for layer in bnn.prediction.layers_with_sampling(run.network)]
    first, second = (run.predict(FORMS["dicts"]) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)
    assert [layer.options for layer in bnn.prediction.layers_with_sampling(run.network)] == samplings
    assert [module.training for module in run.network.modules()] == modes
    assert str(run.network) == before


def test_a_run_in_memory_predicts(place: Path) -> None:
    recipe = Recipe.from_file(place / "label" / "recipe.json")
    run = run_recipe(recipe, **QUIET)
    assert isinstance(run, Run)
    with pytest.warns(UserWarning, match="predicting the validation data of its recipe"):
        wanted = bnn.open_run(place / "label").predict(FORMS["dicts"], coverage=0.9)
    assert run.predict(FORMS["dicts"], coverage=0.9).records() == wanted.records()
    assert run.state == "finished"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "there is nothing to predict: give at least one file, folder or row"),
        (7, {}, "expected a path or several, a list of dicts .* got a int"),
        ([{"height": 1.0}], {}, "no column 'kind'"),
        ([{"height": "high", "kind": "a"}], {}, "row 0: 'high' in column 'height', which holds numbers"),
        (np.zeros((2, 3)), {}, "trained on a table with the columns 'height', 'kind': .* got an array of shape"),
        (FORMS["dicts"], {"coverage": 90}, "coverage is the share of inputs to answer"),
        (FORMS["dicts"], {"coverage": 0.9, "abstain_above": 1}, "abstain_above gives the threshold and coverage looks"),
        (FORMS["dicts"], {"by": "total"}, "by='total' says when to abstain; .*: abstain_above or coverage=0.9"),
        (FORMS["dicts"], {"by": "totl", "coverage": 0.9}, "unknown uncertainty 'totl' .did you mean 'total'"),
        (FORMS["dicts"], {"level": 0.5}, "level is for intervals of real targets"),
        (FORMS["dicts"], {"batch_size": 0}, "batch_size must be an integer >= 1"),
        (FORMS["dicts"], {"keep": ["name"]}, "no column 'name'"),
        (FORMS["dicts"], {"by": "epistemic", "coverage": 0.9, "samples": 1}, "with samples=1 nothing can disagree"),
    ],
)
def test_inputs_and_options_that_make_no_sense(rows: Any, options: dict[str, Any], message: str, place: Path) -> None:
    run = bnn.open_run(place / "label")
    with pytest.raises((ValueError, TypeError), match=message):
        run.predict(rows, **options)


def test_a_table_is_no_array(place: Path) -> None:
    for name in ("arrays", "digits"):
        with pytest.raises(ValueError, match=r"this run was trained on .* got a list of dicts"):
            bnn.open_run(place / name).predict(FORMS["dicts"])
    with pytest.raises(ValueError, match="the array must hold uint8 images"):
        bnn.open_run(place / "digits").predict(torch.rand(2, 1, 8, 8))


class Words:
    """The preparation of a source of a user's own: one number per word."""

    def __call__(self, raw: Any) -> torch.Tensor:
        words = Path(raw).read_text().split() if isinstance(raw, str) else raw["word"]
        return torch.tensor([[float(len(word))] * 3 for word in words])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "words"}


def test_a_preparation_of_ones_own_takes_what_is_given(place: Path, tmp_path: Path) -> None:
    run = replace(bnn.open_run(place / "arrays"), preparation=Words())
    (tmp_path / "words.txt").write_text("one three")
    files, rows = run.predict(str(tmp_path / "words.txt")), run.predict({"word": ["one", "three"]})
    assert files.records() == rows.records()
    with pytest.raises(KeyError, match="word"):
        run.predict({"name": ["one"]})


def test_folders_that_are_no_finished_run(place: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*labl .did you mean '.*label'"):
        bnn.open_run(place / "labl")
    with pytest.raises(NotADirectoryError, match=r"run\.json is a file; expected the folder .*label\?"):
        bnn.open_run(place / "label" / "run.json")
    with pytest.raises(FileNotFoundError, match=r"holds no finished run: .* there are runs in it"):
        bnn.open_run(place)
    begun = tmp_path / "begun"
    write_old_run(begun, finished=False)
    assert RunFolder(begun).state == "begun"
    with pytest.raises(FileNotFoundError, match=r"is not finished: .* to resume it, start `bayesianize train`"):
        bnn.open_run(begun)
    with pytest.raises(FileNotFoundError, match=r"there is a checkpoint: bnn\.fit writes that file when it ends"):
        bnn.open_run(begun / "train")
    assert RunFolder(tmp_path / "nowhere").state == RunFolder(tmp_path).state == "fresh"
    assert RunFolder(begun / "train").state == "begun"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", ""),
        ("run.json", "[]"),
        ("run.json", "{}"),
        ("run.json", '{"recipe": 3, "target": null}'),
        ("net.safetensors", ""),
        ("train/metrics.jsonl", "epoch 0\n"),
    ],
)
def test_damaged_files_are_named(name: str, content: str, place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "label", tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(FileFormatError, match=os.path.basename(name)):
        bnn.open_run(folder)


def test_a_damaged_evaluation_is_named(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "label", tmp_path / "run")
    for name, ask in (("evaluation.json", "evaluation"), ("validation.json", "validation")):
        (folder / name).write_text("{")
        with pytest.raises(ValueError, match=name):
            getattr(bnn.open_run(folder), ask)


def test_a_run_of_fit_needs_its_network(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    data = bnn.data.arrays(x, (x[:, 0] > 0).astype(np.int64))

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

    net = network()
    bnn.bayesianize_(net, **METHOD)
    history = bnn.fit(net, data, epochs=2, out=tmp_path, **QUIET)
    with pytest.raises(ValueError, match=r"pass net=, a plain one, in Python: bnn\.open_run\('.*', net=\.\.\.\)"):
        bnn.open_run(tmp_path)
    run = bnn.open_run(tmp_path, net=network())
    assert run.recipe is None
    assert run.history is not None
    assert (run.history.epochs, run.history.out) == (history.epochs, history.out)
    assert run.predict(x[:3])["class"] == run.predict(torch.from_numpy(x[:3]))["class"]
    with pytest.raises(ValueError, match="does not know where its data are"):
        run.predict(x[:3], coverage=0.9)


def test_a_run_that_trains_longer_forgets_what_it_said_before(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place / "price", tmp_path / "run")
    run = bnn.open_run(folder)
    before = run.write_validation(run.data())
    assert run.recipe is not None
    longer = run_recipe(run.recipe.but(schedule={"epochs": 5}), folder, **QUIET)
    assert longer.validation is None
    with pytest.warns(UserWarning, match="has no validation.json"):
        longer.predict(FORMS["dicts"], coverage=0.9)
    assert longer.validation is not None
    assert not np.array_equal(longer.validation.total, before.total)


# ---- runs of earlier versions ----------------------------------------------------------------------------------------


@pytest.fixture
def old_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("houses.csv").write_text(HOUSES)
    Path("new.csv").write_text(NEW)
    return tmp_path


def test_an_old_run_opens(old_place: Path) -> None:
    run = bnn.open_run(write_old_run(Path("old")))
    found = run.predict("new.csv", coverage=0.8).to_dict()
    assert {name: found[name] for name in found if name not in ("rows", "promise", "df")} == {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in ANSWERS.items()
        if name != "rows"
    }
    for row, wanted in zip(found["rows"], ANSWERS["rows"], strict=True):
        assert row.keys() == wanted.keys()
        for name in (
            "mean",
            "low",
            "high",
            "total",
            "aleatoric",
        ):  # versions draw other noise, of which there is little
            assert row[name] == pytest.approx(wanted[name], rel=2e-3)
    assert run.history is not None
    assert run.history.column("epoch") == [0, 1]
    assert run.evaluation is not None
    assert run.evaluation.metrics["rmse"].value == pytest.approx(113.53389)
    assert run.validation is not None
    assert len(run.validation.total) == 8
    assert run.data().validation is not None


def test_an_old_run_that_had_ended_is_not_trained_again(old_place: Path) -> None:
    old = bnn.open_run(write_old_run(Path("old")))
    assert old.recipe is not None
    assert old.history is not None
    run = run_recipe(old.recipe, "old", **QUIET)
    assert run.history is not None
    assert run.history.epochs == old.history.epochs
    for name, value in run.network.state_dict().items():
        assert torch.equal(value, old.network.state_dict()[name])


@pytest.mark.parametrize("epochs", [2, 3])
def test_an_old_run_resumes(epochs: int, old_place: Path) -> None:
    old = bnn.open_run(write_old_run(Path("old")))
    assert old.recipe is not None
    assert old.history is not None
    recipe = old.recipe.but(schedule={"epochs": epochs})
    states = []
    for folder in ("killed", "killed too"):
        run = run_recipe(recipe, write_old_run(Path(folder), finished=False), **QUIET)
        assert run.history is not None
        assert run.history.column("epoch") == list(range(epochs))
        assert run.history.epochs[0] == old.history.epochs[0]  # not trained again
        assert run.history.epochs[1]["validation_nll"] < run.history.epochs[0]["validation_nll"]
        states.append(run.network.state_dict())
        assert bnn.open_run(folder).recipe == recipe
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    with pytest.raises(ValueError, match=r"schedule\.lr was 0\.02, is now 0\.5; choose another folder with out"):
        run_recipe(recipe.but(schedule={"lr": 0.5}), "killed", **QUIET)
