"""`bayesianize count`, against networks built by hand."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import torch
from torch import nn

import bnn
from bnn.cli import architecture as shapes
from bnn.cli import counting
from bnn.cli.app import run
from bnn.cli.architecture import named
from bnn.cli.counting import readable
from bnn.data.named_sets.catalogue import IMAGE_SETS
from bnn.likelihoods import Categorical
from bnn.nn.nets import CNN, FCN
from bnn.train import Recipe, Run, RunFolder

SMALL = ["fcn", "--in-shape", "12", "--classes", "3", "--hidden", "7,5", "--rows", "4", "--cols", "6"]
METHODS = {
    "ffg-w": {"inference": "ffg"},
    "fcg-w": {"inference": "fcg"},
    "ffg-u": {"inference": "inducing"},
    "matrix-u": {"inference": "inducing", "q_inducing": "matrix"},
    "fcg-u": {"inference": "inducing", "q_inducing": "full"},
    "ensemble-u": {"inference": "inducing", "q_inducing": "ensemble", "ensemble_size": 5},
    "ffg-u-lamda-0": {"inference": "inducingdeterministic"},
    "point-u": {"inference": "inducingdeterministic", "max_sd_u": 0},
    "rank-1": {"inference": "rank1", "components": 5},
    "batch-ensemble": {"inference": "batchensemble", "ensemble_size": 5},
    "mc-dropout": {"inference": "mcdropout"},
    "singular-w": {"inference": "singular", "rank": 4},
    "matrix-w": {"inference": "matrixnormal"},
    "k-tied": {"inference": "ktied"},
}


def counted(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run(["count", *args, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return result


def parameters(result: dict[str, Any]) -> dict[str, int]:
    return {one["method"]: one["parameters"] for one in result["methods"]}


def converted(options: dict[str, Any], **sizes: int) -> nn.Module:
    net = FCN([12, 7, 5, 3])
    bnn.bayesianize_(net, **options, **(sizes if "inducing" in str(options["inference"]) else {}))
    return net


def test_every_method_agrees_with_a_network_built_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    found = parameters(counted(capsys, *SMALL))
    sizes = {"inducing_rows": 4, "inducing_cols": 6}
    plain = 12 * 7 + 7 + 7 * 5 + 5 + 5 * 3 + 3
    expected = {name: bnn.parameter_count(converted(options, **sizes)) for name, options in METHODS.items()}
    expected |= {"deterministic": plain, "ensemble-w": 5 * plain, "compressed-ensemble": 5 * expected["ffg-u"]}
    for name in ("ffg-w", "ffg-u"):
        expected[f"{name}-pruned"] = bnn.parameter_count(converted(METHODS[name], **sizes), keep=0.5)
    assert found == expected
    ensemble = bnn.Ensemble(FCN([12, 7, 5, 3]), members=5)
    assert found["ensemble-w"] == bnn.parameter_count(ensemble)
    bnn.bayesianize_(ensemble, "inducing", **sizes)
    assert found["compressed-ensemble"] == bnn.parameter_count(ensemble)


def test_ratio_bytes_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    result = counted(capsys, *SMALL, "--members", "2", "--keep", "0.25")
    assert result["sizes"] == {"rows": 4, "cols": 6, "members": 2, "keep": 0.25}
    assert result["network"]["in_shape"] == [12]
    assert result["network"]["outputs"] == 3
    rows = {one["method"]: one for one in result["methods"]}
    for row in rows.values():
        assert row["bytes"] == 4 * row["parameters"]
        assert row["ratio"] == row["parameters"] / result["plain"]
    assert rows["ensemble-w"]["ratio"] == 2
    assert rows["ensemble-u"]["label"] == "Ensemble-U of 2"
    net = converted(METHODS["ffg-u"], inducing_rows=4, inducing_cols=6)
    assert rows["ffg-u-pruned"]["parameters"] == bnn.parameter_count(net, keep=0.25)


def test_columns_of_u_follow_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(capsys, "fcn", "--in-shape", "3", "--rows", "2")["sizes"]["cols"] == 2


def test_a_named_data_set_gives_shape_and_classes(capsys: pytest.CaptureFixture[str]) -> None:
    result = counted(capsys, "CNN", "--data", "digits", "--channels", "4", "--hidden", "9", "--rows", "2")
    assert result["plain"] == bnn.parameter_count(CNN([1, 4], [4 * 4 * 4, 9, 10], padding=1))


@pytest.mark.parametrize(
    ("flags", "kernel", "pools"),
    [
        ({}, (64, 3, 3, 3), False),
        ({"in_shape": "1,96,96"}, (64, 1, 7, 7), True),
        ({"data": "mnist", "small_images": False}, (64, 1, 7, 7), True),
        ({"in_shape": "3,96,96", "small_images": True}, (64, 3, 3, 3), False),
    ],
)
def test_small_images_decide_how_a_resnet_begins(flags: dict[str, Any], kernel: tuple[int, ...], pools: bool) -> None:
    net: Any = named("resnet18", **flags).weightless()
    assert net.conv1.weight.shape == kernel
    assert isinstance(net.maxpool, nn.MaxPool2d) == pools
    assert net.conv1.weight.is_meta


def test_layers_add_up_to_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = counted(capsys, "resnet18", "--rows", "8", "--layers")
    table = parameters(result)
    for method in ("deterministic", *METHODS):
        assert sum(layer["parameters"][method] for layer in result["layers"]) == table[method]
    rest = result["layers"][-1]
    with torch.device("meta"):
        net = bnn.nn.nets.make_network("resnet18", out_features=10)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert rest["layer"] == "everything else"
    assert rest["parameters"]["ffg-w"] == sum(p.numel() for norm in norms for p in norm.parameters())
    assert [layer["layer"] for layer in result["layers"][:2]] == ["conv1", "layer1.0.conv1"]


@pytest.mark.slow
def test_the_numbers_of_the_readme_appear_to_the_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["count", "resnet50", "--rows", "64"]) == 0
    out = capsys.readouterr().out
    expected = {
        "Deterministic": "23,520,842",
        "FFG-W": "46,988,564",
        "FFG-U": "5,710,902",
        "Ensemble-U of 5": "6,374,454",
        "FFG-U, pruned to 50 % of Z": "3,106,678",
    }
    for label, number in expected.items():
        assert re.search(rf"^ {re.escape(label)} +{number} ", out, re.MULTILINE), label
    assert "24.3 %" in out
    assert "89.7 MiB" in out


def test_what_does_not_fit_in_memory_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "total_memory", lambda device: 100_000)
    notes = {one["method"]: one["note"] for one in counted(capsys, *SMALL)["methods"]}
    fcg = bnn.parameter_count(converted(METHODS["fcg-w"]))
    assert notes["fcg-w"] == f"{readable(16 * fcg)} to train, of 97.7 KiB in all"
    assert notes["ffg-w"] == ""
    assert run(["count", *SMALL]) == 0
    assert f"FCG-W: {notes['fcg-w']}" in capsys.readouterr().out


def test_what_no_tensor_can_hold_is_left_out_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["fcn", "--in-shape", "3,4000,4000"]
    rows = {one["method"]: one for one in counted(capsys, *args)["methods"]}
    assert rows["fcg-w"]["parameters"] is rows["fcg-w"]["bytes"] is rows["fcg-w"]["ratio"] is None
    assert rows["fcg-w"]["note"] == "left out: it has more numbers than a tensor can hold"
    assert rows["deterministic"]["parameters"] == 48_000_000 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    assert run(["count", *args]) == 0
    assert "FCG-W: left out" in capsys.readouterr().out


# ---- recipes and runs ------------------------------------------------------------------------------------------------

RECIPE = Recipe(
    {"name": "digits"},
    {"name": "fcn", "hidden": [8]},
    {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3},
    name="small",
)


def twin(recipe: Recipe) -> nn.Module:
    net: nn.Module = nn.Sequential(nn.Flatten(), FCN([64, 8, 10]))
    net = bnn.Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    bnn.bayesianize_(net, **recipe.method)
    return net


@pytest.mark.parametrize("members", [1, 3])
def test_a_recipe_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, members: int) -> None:
    recipe = RECIPE.but(members=members)
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(recipe.to_dict()))
    result = counted(capsys, str(file), "--keep", "0.25", "--layers")
    found, plain = parameters(result), 64 * 8 + 8 + 8 * 10 + 10
    assert result["plain"] == found["deterministic"] == plain
    assert found.get("ensemble-w") == (None if members == 1 else 3 * plain)
    assert found["recipe"] == bnn.parameter_count(twin(recipe))
    assert found["recipe-pruned"] == bnn.parameter_count(twin(recipe), keep=0.25)
    assert sum(layer["parameters"]["recipe"] for layer in result["layers"]) == found["recipe"]
    assert result["methods"][-2]["label"] == "small"


def test_a_recipe_with_global_inducing_weights(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    more = {"inducing_rows": 2, "inducing_cols": 2}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(RECIPE.but(global_inducing=more).to_dict()))
    net = twin(RECIPE)
    bnn.register_global_inducing_weights_(net, **more)
    result = counted(capsys, str(file), "--layers")
    assert parameters(result)["recipe"] == bnn.parameter_count(net)
    assert sum(layer["parameters"]["recipe"] for layer in result["layers"]) == bnn.parameter_count(net)
    assert "_global_inducing_module" in [layer["layer"] for layer in result["layers"]]


def test_a_preset_needs_no_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BNN_DATA", "")
    found = parameters(counted(capsys, "ours/compressed-ensemble"))  # on Fashion-MNIST
    with torch.device("meta"):
        nets = [CNN([1, 32, 64, 64], [64 * 3 * 3, 256, 10], padding=1) for _ in range(3)]
    assert found["deterministic"] == bnn.parameter_count(nets[0])
    ensemble = bnn.Ensemble(nets)
    bnn.bayesianize_(ensemble, "inducing", inducing_rows=24, inducing_cols=24)
    assert found["recipe"] == bnn.parameter_count(ensemble)


def test_a_plain_preset_and_one_with_two_outputs(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    assert list(parameters(counted(capsys, "ours/digits-deterministic"))) == ["deterministic"]
    table = tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "".join(f"{i / 3},{i * i},{i / 7}\n" for i in range(20)))
    file = tmp_path / "recipe.json"
    recipe = {"data": {"csv": str(table), "target": "y"}, "net": {"name": "fcn", "hidden": [4]}}
    file.write_text(json.dumps(recipe | {"likelihood": "heteroscedastic"}))
    assert counted(capsys, str(file))["plain"] == 2 * 4 + 4 + 4 * 2 + 2  # mean and noise


def test_a_finished_run(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    net = twin(RECIPE)
    classes = tuple("0123456789")
    shape, folder = (1, 8, 8), RunFolder(tmp_path)
    Run(net, Categorical(), "classification", shape, 10, classes, recipe=RECIPE, folder=folder).write()
    found = parameters(counted(capsys, str(tmp_path)))
    assert found["recipe"] == bnn.parameter_count(net)
    assert found["recipe-pruned"] == bnn.parameter_count(net, keep=0.5)


def test_shapes_of_named_sets() -> None:
    data = bnn.data.load("digits")
    assert shapes.shape_of({"name": "digits"}) == (data.in_shape, data.out_features)
    assert shapes.shape_of({"name": "cifar100"}) == ((3, 32, 32), 100)
    assert shapes.shape_of({"name": "cifar100", "coarse": True}) == ((3, 32, 32), 20)
    assert shapes.shape_of({"name": "uci/yacht"}) == ((6,), 1)
    assert {*shapes.IMAGES, *shapes.COLUMNS} == {*bnn.data.names()} - {"tiny_imagenet"}
    assert all(shape[0] == 3 for name, shape in shapes.IMAGES.items() if IMAGE_SETS[name].augmented)  # colour


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["resnet81"], "unknown network 'resnet81' (did you mean 'resnet18'?); expected one of fcn, cnn, resnet18"),
    (["ours/digits-fgf"], "did you mean 'ours/digits-ffg'?"),
    (["no.toml"], "there is no such file; expected a .json or .toml file"),
    (["ours/digits-ffg", "--rows", "3", "--data", "digits"], "sets --data, --rows itself"),
    (["resnet18", "--hidden", "3"], "--hidden is for fcn, cnn; a resnet18 has no such option"),
    (["fcn", "--channels", "3"], "--channels is for cnn; a fcn has no such option"),
    (["cnn", "--small-images"], "--small-images is for resnet18"),
    (["cnn", "--data", "digitz"], "unknown data set 'digitz' (did you mean 'digits'?)"),
    (["cnn", "--data", "digits", "--classes", "3"], "--data sets the shape of the inputs"),
    (["cnn", "--in-shape", "3,a"], "--in-shape must be whole numbers from 1 to 10,000,000 with commas between"),
    (["cnn", "--in-shape", ""], "--in-shape must be whole numbers"),
    (["fcn", "--hidden", "0"], "--hidden must be whole numbers"),
    (["cnn", "--in-shape", "3,2,2"], "max-poolings leave nothing"),
    (["resnet18", "--in-shape", "13"], "takes images (C, H, W)"),
    (["fcn", "--in-shape", "9999999,9999999"], "at most 2^31 are allowed"),
    (["fcn", "--rows", "0"], "--rows"),
    (["fcn", "--rows", "2.5"], "--rows"),
    (["fcn", "--keep", "1.5"], "--keep"),
    (["fcn", "--members", "0"], "--members"),
    (["fcn", "--row", "3"], "No such option"),
]


@pytest.mark.parametrize(("args", "message"), MISTAKES, ids=[" ".join(args) for args, _ in MISTAKES])
def test_mistakes(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert run(["count", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert " ".join(message.split()) in " ".join(captured.err.replace("│", " ").split())
    assert "Traceback" not in captured.err


def test_a_folder_without_a_run(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    assert run(["count", str(tmp_path)]) == 2
    assert "holds no finished run" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**70, "1,024.0 EiB")])
def test_bytes_for_people(size: int, text: str) -> None:
    assert readable(size) == text
