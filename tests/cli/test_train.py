"""`bayesianize train` for real: small runs on data of one's own, that resume where they stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_data import flowers, photos, prices, train

import bnn
from bnn.train import Recipe, load_run, loop, run_recipe

QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_of_classes(home: Path) -> None:
    flowers(home)
    ended = train("--data", "flowers.csv", "--target", "kind", "--epochs", "20", "--hidden", "16", "--json")
    assert ended.code == 0, ended.err
    folder = Path("runs", "flowers-fcn-ffg-u-seed0")
    found = ended.json
    assert found["run"] == str(folder)
    assert str(folder) in ended.err  # told at the start
    assert (found["epochs"], found["plain_epochs"]) == (20, 40)
    assert (found["scored"], found["inputs"], found["draws"]) == ("validation", 9, 20)
    assert found["metrics"]["accuracy"] >= 8 / 9
    assert found["plain_parameters"] == 4 * 16 + 17 * 3
    assert found["parameters"] == bnn.parameter_count(load_run(folder).net)
    assert Recipe.from_dict(found["recipe"]) == Recipe.from_file(folder / "recipe.json")
    right = bnn.open_run(folder).validation.right
    assert right is not None
    assert right.mean() == pytest.approx(found["metrics"]["accuracy"])
    assert found["next"][0] == f"bayesianize evaluate {folder}"


def test_a_table_of_real_numbers(home: Path) -> None:
    prices(home)
    ended = train("--data", "prices.csv", "--target", "price", "--epochs", "30", "--hidden", "16", "--out", "my run")
    assert ended.code == 0, ended.err
    errors = bnn.open_run("my run").validation.error
    assert errors is not None
    rmse = float((errors**2).mean() ** 0.5)
    assert rmse < 10  # the prices have an sd of 20
    assert f"RMSE {rmse:.4g}" in ended.out
    assert "bayesianize predict 'my run' prices.csv" in ended.out
    assert "trained     30 epochs, of which number " in ended.out
    assert ", the best, was kept, after 60 of a plain network, " in ended.out
    assert "epoch 30/30" in ended.err
    quiet = train("--data", "prices.csv", "--target", "price", "--epochs", "1", "--quiet", "--out", "quiet")
    assert (quiet.code, quiet.err) == (0, "")


def test_a_folder_of_pictures_of_all_sizes(home: Path) -> None:
    photos(home, count=10, sides=(10, 14))
    args = ("--data", "photos", "--channels", "4,4", "--hidden", "8", "--epochs", "12", "--image-size", "8", "--json")
    ended = train(*args)
    assert ended.code == 0, ended.err
    assert ended.json["metrics"]["accuracy"] == 1
    run = load_run(ended.json["run"])
    assert run.in_shape == (3, 8, 8)
    assert run.classes == ("dark", "light")
    assert run.preparation(["photos/dark/0.png"]).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("method", ["deterministic", "ensemble-u", "compressed-ensemble"])
def test_digits_by_several_methods(method: str, home: Path) -> None:
    args = ("--data", "digits", "--net", "fcn", "--hidden", "16", "--set", "data.first=100", "--epochs", "1")
    args += ("--method", method, "--json") + (("--pretrain-epochs", "1") if method.startswith("comp") else ())
    ended = train(*args)
    assert ended.code == 0, ended.err
    draws = {"deterministic": 1, "ensemble-u": 20, "compressed-ensemble": 21}[method]  # every member equally often
    assert (ended.json["draws"], bnn.open_run(ended.json["run"]).validation.samples) == (draws, draws)
    assert ended.json["run"] == str(Path("runs", f"digits-fcn-{method}-seed0"))


def test_without_validation_data_the_test_data_are_scored(home: Path) -> None:
    flowers(home)
    ended = train("--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--validation", "0", "--json")
    assert (ended.json["scored"], ended.json["inputs"]) == ("test", 18)
    assert not (Path(ended.json["run"]) / "validation.json").exists()
    ended = train(
        "--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--validation", "0", "--test", "0", "--out", "b"
    )
    assert (ended.code, "NLL" in ended.out) == (0, False)


def test_the_run_is_that_of_its_recipe(home: Path) -> None:
    flowers(home)
    args = ("--data", "flowers.csv", "--target", "kind", "--epochs", "3", "--hidden", "8", "--seed", "5")
    assert train(*args, "--out", "by_flags").code == 0
    by_hand = run_recipe(Recipe.from_file(home / "by_flags" / "recipe.json"), **QUIET)
    stored = load_file(home / "by_flags" / "net.safetensors")
    for name, tensor in by_hand.net.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    again = train("by_flags/recipe.json", "--out", "by_file")
    assert again.code == 0, again.err
    assert same_network("by_flags", "by_file")


def test_a_finished_run_is_shown_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flowers(home)
    args = ("--data", "flowers.csv", "--target", "kind", "--epochs", "2", "--hidden", "8")
    first = train(*args)
    stored = load_file(home / "runs/flowers-fcn-ffg-u-seed0/net.safetensors")
    monkeypatch.setattr(loop.Loop, "_take_step", lambda *_: pytest.fail("it trained again"))
    again = train(*args)
    assert again.code == 0, again.err
    assert "finished already, nothing is trained" in again.err
    assert "epoch 1" not in again.err
    assert again.out == first.out
    for name, tensor in load_file(home / "runs/flowers-fcn-ffg-u-seed0/net.safetensors").items():
        assert torch.equal(tensor, stored[name])


def test_other_data_under_the_same_name_are_refused(home: Path) -> None:
    flowers(home)
    args = ("--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--hidden", "8")
    assert train(*args).code == 0
    flowers(home, seed=1)
    ended = train(*args)
    assert ended.code == 2
    assert "data: " in ended.err


@pytest.mark.parametrize("more", [(), ("--pretrain-epochs", "2"), ("--method", "ensemble-w", "--members", "2")])
def test_it_goes_on_where_it_stopped(more: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flowers(home)
    args = ("--data", "flowers.csv", "--target", "kind", "--epochs", "3", "--hidden", "8", *more)
    assert train(*args, "--out", "whole").code == 0
    steps = 0
    take = loop.Loop._take_step

    def stopping(self: Any, *rest: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            os.kill(os.getpid(), signal.SIGINT)
        take(self, *rest)

    monkeypatch.setattr(loop.Loop, "_take_step", stopping)
    stopped = train(*args, "--out", "parts")
    assert stopped.code == 130
    assert "start it again to resume from" in stopped.err
    assert stopped.out == ""
    assert not (home / "parts" / "run.json").exists()
    assert train(*args, "--out", "parts").code == 0
    assert steps == len(metrics("whole")) * 2  # two steps per epoch, none of them twice
    assert same_network("whole", "parts")
    assert (home / "whole/validation.json").read_bytes() == (home / "parts/validation.json").read_bytes()


def metrics(folder: str) -> list[Any]:
    return [json.loads(line) for file in Path(folder).rglob("metrics.jsonl") for line in file.read_text().splitlines()]


def same_network(one: str, other: str) -> bool:
    """Bit by bit; the order of a file's notes is not fixed."""
    a, b = (load_file(Path(folder, "net.safetensors")) for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_ctrl_c_as_a_program(home: Path) -> None:
    flowers(home)
    args = ["train", "--data", "flowers.csv", "--target", "kind", "--epochs", "100000"]
    with subprocess.Popen([sys.executable, "-m", "bnn", *args], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "start it again to resume from" in rest
    assert "Traceback" not in rest


@pytest.mark.slow
def test_defaults_are_as_good_as_a_plain_network_and_alive(home: Path) -> None:
    flowers(home)
    scores = {}
    for method in ("ffg-u", "deterministic"):
        ended = train("--data", "flowers.csv", "--target", "kind", "--method", method, "--quiet", "--json")
        run, data = load_run(ended.json["run"]), bnn.data.csv("flowers.csv", "kind")
        scores[method] = bnn.evaluate(run.net, data, likelihood=run.likelihood, resamples=10, progress=False)
    ours, plain = scores["ffg-u"], scores["deterministic"]
    assert ours.metrics["accuracy"].value >= plain.metrics["accuracy"].value - 1 / 18
    assert ours.metrics["nll"].value <= plain.metrics["nll"].value + 0.05
    assert ours.verdict.startswith("draws disagree (")
