"""The benchmarks: rows are what they say, and the scripts run and write what they found."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import bnn

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Imports a script by name."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def run(tmp_path: pathlib.Path, name: str, *arguments: str) -> dict:
    """What a script writes."""
    out = tmp_path / "result.json"
    subprocess.run([sys.executable, FOLDER / name, *arguments, "--out", out], check=True, capture_output=True)
    return json.loads(out.read_text())


def test_every_bar_belongs_to_a_row(script):
    small, speed = script("small"), script("speed")
    assert set(small.BARS) <= set(small.row_names())
    assert set(speed.TRAINING_BARS) == set(speed.STEPS)
    assert {name for name, _ in speed.BARS} <= set(speed.NETS)


def test_small_networks_have_the_sizes_of_their_names(script):
    sizes = {
        name: sum(p.numel() for p in network.build().parameters()) for name, network in script("small").NETWORKS.items()
    }
    assert sizes["cnn188k"] == 320 + 18_496 + 36_928 + 131_200 + 1_290
    assert abs(sizes["cnn10k"] - 10_000) < 100
    assert sizes["mlp"] == 17 * 64 + 65 * 64 + 65 * 2


def test_every_table_has_one_place():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    places = re.findall(r"<!-- (.*?) -->\n.*?<!-- end -->", page, flags=re.DOTALL)
    assert sorted(places) == sorted(
        ["machine", "predict", "split", "train", "dense", "small", "small steps", "memory", "regret"]
    )


def test_split_layers_have_no_more_parameters_than_the_papers_matrix(script):
    contestants = script("contestants")
    plain = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.Conv2d(8, 4, 1, bias=False)).eval()
    paper, split = contestants.variant(plain, "auto", m=4), contestants.split(plain, "auto", m=4)
    assert [layer.options.kernel for layer in split] == ["split", "paper"]
    side = len(split[0].z_row)
    assert side > 4
    assert bnn.parameter_count(split) <= bnn.parameter_count(paper)
    assert bnn.parameter_count(split) + 2 * 24 + 2 * (2 * side + 1) + 2 > bnn.parameter_count(
        paper
    )  # one more is too many


def test_a_turn_is_as_many_calls_as_it_needs(script):
    common = script("common")
    calls = []
    assert common.calls_per_turn(lambda: calls.append(1), 0.0) == 1
    assert not calls
    common.repeated(lambda: calls.append(1), 5)()
    assert len(calls) == 5
    assert common.calls_per_turn(lambda: sum(range(100)), 0.01) > 10


def test_nothing_chosen_is_an_error(script):
    common = script("common")
    assert common.chosen(["a/1", "a/2", "b/1"], ["b/*", "*/1"]) == ["a/1", "b/1"]
    with pytest.raises(SystemExit, match="no row matches"):
        common.chosen(["a/1"], ["c/*"])


def test_the_median_quotient_pairs_rounds(script):
    slow = [1.0, 2.0, 10.0, 1.0, 5.0]  # a noisy machine: both versions feel it
    ratio, interval = script("compare").median_quotient([2 * value for value in slow], slow)
    assert (ratio, interval) == (2.0, [2.0, 2.0])
    ratio, (low, high) = script("compare").median_quotient([float(i) for i in range(1, 101)], [1.0] * 100)
    assert (ratio, low, high) == (50.5, 41.0, 60.0)  # order statistics 41 and 60 of 100: Binomial(100, 1/2) at 95 %


@pytest.mark.slow
def test_the_check_of_the_spread_compares_the_same_posterior(script, monkeypatch: pytest.MonkeyPatch):
    small, contestants = script("small"), script("contestants")
    network, x = small.NETWORKS["mlp"], torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    for seed in (0, 1, 2):  # two conversions with seed 2 differ by 4 %: M exceeds the last layer's outputs
        torch.manual_seed(seed)
        net = small.variants(network, network.build())["lamda=0.03"]
        assert abs(contestants.check_spread(net, x, draws=8_000) - 1) < 0.03  # about 1 % is chance
    truth = contestants._spread

    def wide(net, x, draws):
        return truth(net, x, draws) * (1.1 if net[0].options.sampling == "local" else 1)

    monkeypatch.setattr(contestants, "_spread", wide)
    bnn.set_sampling_(net, "local")  # the one whose draws are made too wide
    with pytest.raises(SystemExit, match="not the same"):
        contestants.check_spread(net, x, draws=4_000)


@pytest.mark.slow
def test_small_networks_are_timed(tmp_path: pathlib.Path):
    found = run(tmp_path, "small.py", "--only", "mlp/predict/1", "mlp/pass*", "mlp/epoch/*", "--rounds", "1")
    assert [row["row"] for row in found["rows"]] == [
        "mlp/predict/1",
        "mlp/pass/1",
        "mlp/pass-grad/1",
        "mlp/epoch/100",
    ]
    predict = found["rows"][0]
    for label in ("lamda=0", "lamda=0.03"):
        assert predict["ratios"][label] == predict["seconds"][label] / predict["seconds"]["plain"]
        assert predict["bars"][f"{label} / loop"] == 1.0
    assert found["machine"]["threads"] == 1


@pytest.mark.slow
def test_a_bayesian_last_layer_is_timed_against_one_plain_pass(tmp_path: pathlib.Path):
    found = run(tmp_path, "last_layer.py", "--only", "cnn188k/*", "--rounds", "1", "--threads", "1")
    (row,) = found["rows"]
    assert row["row"] == "cnn188k/100"
    for label in ("K=20", "logits"):
        assert row["ratios"][label] == row["seconds"][label] / row["seconds"]["plain"]
        assert row["bars"][label] == 1.1


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_two_versions_take_turns(tmp_path: pathlib.Path):
    few = ("--rounds", "2", "--seconds", "0", "--tolerance", "100")
    found = run(tmp_path, "compare.py", "HEAD", "--rows", "small/mlp/lamda=0/1x20", *few)
    (row,) = found["rows"]
    assert row["rounds"] == 2
    assert row["ratio"] > 0
    assert set(row["seconds"]) == {"base", "new"}


def test_compressed_networks_take_less_than_one_plain_one(script):
    ensemble = script("ensemble")
    torch.manual_seed(0)
    nets = ensemble.networks()
    counts = {name: bnn.parameter_count(net) for name, net in nets.items()}
    assert counts[ensemble.BASELINE] == 3 * counts["plain"]
    assert counts["point"] < counts["laplace"] < 3 * 0.27 * counts["plain"]
    found = ensemble.measure("cnn188k/2", nets, rounds=1)
    assert set(found["ratios"]) == {"point", "laplace, K=48", "laplace, K=21", "laplace, K=6", "laplace, logits"}
    assert not found["bars"]
