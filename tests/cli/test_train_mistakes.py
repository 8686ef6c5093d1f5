"""What makes no sense: one line that says what does, exit code 2, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_data import flowers, photos, prices, train

import bnn
from bnn.cli.train import device_settings

TABLE = ("--data", "flowers.csv", "--target", "kind")
PRICES = ("--data", "prices.csv", "--target", "price")
PRESET = ("--preset", "ours/digits-from-trained")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of one's own, where the command is started."""
    flowers(tmp_path)
    prices(tmp_path)
    photos(tmp_path, count=3)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.savez(tmp_path / "no_y.npz", x=np.zeros((3, 2)))
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "bad.json").write_text('{"data": {"name": "digits"}, "nets": {}}')
    bnn.save(bnn.nn.nets.FCN([2, 3]), tmp_path / "other.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOURCES = [
    (
        (),
        "say what to train: a recipe file, --preset NAME (`bayesianize presets` lists them), or data, as `bayesianize",
    ),
    (("--method", "ffg-u"), "say what to train"),
    (
        ("bad.json", "--preset", "ours/digits-ffg"),
        "give a recipe file, bad.json, or --preset ours/digits-ffg, not both",
    ),
    (("flowers.csv",), "data go behind --data: bayesianize train --data flowers.csv --target COLUMN"),
    (("photos",), "data go behind --data: bayesianize train --data photos"),
    (("ours/digits-ffg",), "it is a preset: bayesianize train --preset ours/digits-ffg"),
    (("notes",), "notes is no recipe: expected a .json or .toml file"),
    (("absent.toml",), "no recipe absent.toml: there is no such file"),
    (("bad.json",), "bad.json: unknown field 'nets' (did you mean 'net'?)"),
    (("--preset", "ours/digits-fgg"), "unknown preset 'ours/digits-fgg' (did you mean 'ours/digits-ffg'?)"),
]
DATA = [
    (("--data", "difits"), "unknown data 'difits' (did you mean 'digits'?)"),
    (("--data", "uci/yaht"), "did you mean 'uci/yacht'?"),
    (("--data", "flower.csv"), "there is no file or folder flower.csv (did you mean 'flowers.csv'?)"),
    (("--data", "./flower.csv"), "(did you mean './flowers.csv'?)"),
    (("--data", "x.npy"), "put inputs x and targets y in one .npz"),
    (("--data", "no_y.npz"), "has no array named 'y' or 'y_train'"),
    (("--data", "notes.txt"), "expected a .csv, .tsv or .npz file, or a folder of images"),
    (
        ("--data", "flowers.csv"),
        "say which column to predict with --target; flowers.csv has the columns width, height, note",
    ),
    (("--data", "flowers.csv", "--target", "kin"), "did you mean 'kind'?"),
    ((*TABLE, "--drop", "not"), "did you mean 'note'?"),
    ((*TABLE, "--task", "clasification"), "unknown task 'clasification' (did you mean 'classification'?)"),
    ((*TABLE, "--image-size", "8"), "--image-size is for a folder of images; flowers.csv is a CSV file"),
    ((*TABLE, "--test", "x"), "--test is a share of the data, as 0.2, or a CSV file of test rows; got 'x'"),
    ((*TABLE, "--test", "0.95"), "leave nothing to train on"),
    ((*TABLE, "--validation", "2"), "validation must be a fraction"),
    ((*TABLE, "--download"), "--download is for named data sets"),
    (("--data", "digits", "--target", "x"), "--target is for a CSV file; digits is a named data set"),
    (("--data", "digits", "--test", "0.1"), "--test is for"),
    (("--data", "photos", "--image-size", "2x3x4"), "--image-size is one side or HEIGHTxWIDTH"),
    (("--data", "photos", "--image-size", "big"), "--image-size must be whole numbers"),
    ((*PRESET, "--drop", "x"), "--drop is for a CSV file; digits is a named data set"),
]
NETWORK = [
    ((*TABLE, "--net", "fnc"), "unknown network 'fnc' (did you mean 'fcn'?)"),
    ((*TABLE, "--net", "cnn"), "use the network 'fcn'"),
    ((*TABLE, "--channels", "3"), "--channels is for cnn"),
    ((*TABLE, "--hidden", "3,x"), "--hidden must be whole numbers"),
    ((*TABLE, "--method", "fgg-u"), "unknown method 'fgg-u' (did you mean 'ffg-u'?)"),
    ((*TABLE, "--method", "ffg-w", "--rows", "3"), "--rows is for methods of inducing"),
    ((*TABLE, "--method", "deterministic", "--max-lamda", "0.1"), "this one is deterministic"),
    ((*TABLE, "--method", "matrix-u", "--max-sd", "0.1"), "q_inducing='matrix' has no such cap"),
    ((*TABLE, "--method", "fcg-w", "--max-sd", "0.1"), "--max-sd is for methods of"),
    ((*TABLE, "--max-lamda", "-1"), "max_lamda must be a finite number >= 0"),
    ((*TABLE, "--likelihood", "gaussian"), "unknown likelihood for classification 'gaussian'"),
    ((*PRICES, "--likelihood", "heteroscedatic"), "(did you mean 'heteroscedastic'?)"),
    ((*TABLE, "--set", "method.inducing_row=3"), "unknown option 'inducing_row'"),
    ((*TABLE, "--set", "net.hiden=[3]"), "--set net.hiden: no such value (did you mean 'hidden'?)"),
    (("--data", "photos", "--set", "net.padding=0"), "the network cannot take these inputs"),
]
TRAINING = [
    ((*TABLE, "--lr", "0"), "lr must be a finite number > 0, got 0.0"),
    ((*TABLE, "--milestones", "9,3"), "milestones must rise"),
    (
        (*TABLE, "--epochs", "5", "--ml-epochs", "4", "--annealing-epochs", "1"),
        "leave none of 5 for the full objective",
    ),
    ((*TABLE, "--method", "deterministic", "--kl-weight", "0.1"), "--kl-weight is for Bayesian methods"),
    ((*TABLE, "--method", "ensemble-w", "--pretrain-epochs", "3"), "--pretrain-epochs is for Bayesian methods"),
    ((*TABLE, "--weights", "absent"), "--weights absent: there is no such file"),
    ((*TABLE, "--weights", "notes.txt"), "cannot load notes.txt"),
    ((*TABLE, "--weights", "other.safetensors"), "does not fit this network"),
    (
        (*TABLE, "--weights", "other.safetensors", "--pretrain-epochs", "2"),
        "give weights, a trained network, or pretrain",
    ),
    ((*TABLE, "--validation", "0", "--patience", "3"), "set some aside with --validation 0.1"),
    ((*TABLE, "--set", "schedule.lrr=1"), "--set schedule.lrr: no such value (did you mean 'lr'?)"),
    ((*TABLE, "--set", "shedule.lr=1"), "a recipe has no 'shedule' (did you mean 'schedule'?)"),
    ((*TABLE, "--set", "schedule=1"), "--set schedule=1: that is no single value; write --set schedule.NAME=VALUE"),
    ((*TABLE, "--set", "ours=3"), "--set ours=3: that is no single value; write --set ours=[...]"),
    ((*TABLE, "--set", "schedule.cosine=maybe"), "cosine must be true or false, got 'maybe'"),
    ((*TABLE, "--set", "seed.x=1"), "'seed' is one value, it has no 'x'; write --set seed=..."),
    (
        (*TABLE, "--pretrain-epochs", "0", "--set", "pretrain.lr=1"),
        "this run has no pretrain; --pretrain-epochs adds it",
    ),
    ((*TABLE, "--set", "data.tset=0.1"), "data: csv has no option 'tset' (did you mean 'test'?)"),
    ((*TABLE, "--set", "lr"), "--set takes name=value, as --set schedule.clip=1.0; got 'lr'"),
    ((*TABLE, "--device", "gpu"), "unknown device 'gpu'; expected cpu, cuda, cuda:1 or mps"),
    ((*TABLE, "--out", "notes.txt"), "--out notes.txt is a file"),
]


@pytest.mark.parametrize(("args", "message"), [*SOURCES, *DATA, *NETWORK, *TRAINING])
def test_mistakes(args: tuple[str, ...], message: str, home: Path) -> None:
    before = sorted(path for path in home.rglob("*"))
    ended = train(*args)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert sorted(path for path in home.rglob("*")) == before


@pytest.mark.parametrize(
    "args", [("--epochs", "0"), ("--rows", "-3"), ("--seed", "x"), ("--validation", "many"), ("--bogus",)]
)
def test_values_of_another_kind(args: tuple[str, ...], home: Path) -> None:
    ended = train(*TABLE, *args)
    assert ended.code == 2
    assert args[0] in ended.err
    assert not (home / "runs").exists()


def test_a_named_set_that_is_not_there_says_how_to_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BNN_DATA", "BNN_DOWNLOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BNN_CACHE", str(home / "cache"))
    ended = train("--data", "cifar10")
    assert ended.code == 2
    assert "--download lets `train` fetch cifar10" in ended.err
    assert not (home / "runs").exists()


def test_devices() -> None:
    assert device_settings("cpu") == {"accelerator": "cpu", "devices": 1}


def test_another_recipe_in_the_same_folder(home: Path) -> None:
    stored: dict[str, Any] = json.loads(train(*TABLE, "--epochs", "1", "--quiet", "--json").out)["recipe"]
    folder = home / "runs" / "flowers-fcn-ffg-u-seed0"
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert json.loads((folder / "recipe.json").read_text()) == stored
    for flag, message in (
        (("--lr", "0.5"), "schedule.lr was 0.005, is now 0.5; choose another folder with --out, or delete this one"),
        (("--epochs", "2"), "schedule.epochs was 1, is now 2, which changes every rate of a cosine"),
        (("--drop", "note"), "data.drop was None, is now ['note']"),
    ):
        ended = train(*TABLE, "--epochs", "1", "--quiet", *flag)
        assert ended.code == 2
        assert f"{Path('runs', folder.name)} holds a run of another recipe: " in ended.err
        assert message in ended.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept
