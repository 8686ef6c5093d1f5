"""`bnn.load_config`: what it returns, the paper's configurations on their networks, and every mistake it names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import bnn
from bnn.nn.base import BayesianLayer

PAPER = sorted((Path(__file__).parent.parent / "configs" / "paper").glob("*.json"))


def load(tmp_path: Path, config: object) -> dict[str, object]:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return bnn.load_config(path)


@pytest.mark.parametrize(
    "config",
    [
        {"inference": "ffg"},
        {"inference": "Inducing", "inducing_rows": 3, "max_lamda": None},
        {"inference": {"0": "ffg", "Linear": None, "2": {"inference": None}}, "prior_weight_sd": "neal"},
        {"inference": {"0": {"inference": "ffg"}, "-1": {"inference": "fcg"}}, "max_sd": 0.1, "init_sd": 1e-3},
    ],
)
def test_config_comes_back_as_it_is(config, tmp_path):
    assert load(tmp_path, config) == config


def test_layers_without_an_outer_inference(tmp_path):
    layers = {"0": {"inference": "ffg", "max_sd": 0.1}, "2": "fcg", "1": None}
    config = load(tmp_path, layers)
    assert config == {"inference": layers}
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    bnn.bayesianize_(net, **config)
    assert [type(m).__name__ for m in net] == ["FFGLinear", "Linear", "FCGLinear"]
    assert net[0].options.max_sd == 0.1


def network_for(name: str) -> nn.Module:
    if name.startswith("regression"):
        return bnn.nn.nets.make_network("fcn", sizes=[1, 50, 1], nonlinearity="Tanh")
    with torch.device("meta"):
        classes = 100 if name.startswith("cifar100") else 10
        return bnn.nn.nets.make_network("resnet18", out_features=classes, kernel_size=3, remove_maxpool=True)


def test_all_thirteen_are_there():
    assert len(PAPER) == 13


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_configurations_of_the_paper_convert_their_networks(path):
    net, config = network_for(path.stem), bnn.load_config(path)
    weights = sum(isinstance(m, nn.Linear | nn.Conv2d) for m in net.modules())
    bnn.bayesianize_(net, **config)
    layers = [m for m in net.modules() if isinstance(m, BayesianLayer)]
    assert len(layers) == weights
    family = {"ffg_w": "ffg", "fcg_w": "fcg"}.get(path.stem[-5:], "inducing")
    assert {layer.family for layer in layers} == {family}
    for layer in layers:
        check_layer(path.stem, layer)
    if path.stem.startswith("regression"):
        assert net(torch.zeros(3, 1)).shape == (3, 1)


def check_layer(name: str, layer: BayesianLayer) -> None:
    """The resolved options of one layer, by the paper's text."""
    scale = 4.0 if name.startswith("regression") else 1.0
    width = 1.0 if "cifar" in name and name.endswith("ffg_w") else math.sqrt(layer.d_in)
    if layer.family != "inducing":
        assert float(layer.prior_sds()[0]) == pytest.approx(scale / width)
        return
    assert layer.prior_sd() == pytest.approx(scale / width)
    assert layer.options.init == "paper"
    last = isinstance(layer, nn.Linear) and not name.startswith("cifar100")
    if name.startswith("regression"):
        expected = (25, 2) if layer.d_out == 50 else (1, 25)
    else:
        M = 128 if name.startswith("ablation") else 64
        expected = (10 if last else M, M)
        assert layer.options.max_lamda == (0.1 if "ensemble" in name else 0.03)
        assert layer.options.max_sd_u == (None if "ensemble" in name else 0.1)
    assert (len(layer.z_row), len(layer.z_col)) == expected
    q = {"ensemble_u": "ensemble", "fcg_u": "full", "ffg_u": "diagonal"}[name[name.rindex("_", 0, -2) + 1 :]]
    assert layer.options.q_inducing == q
    if q == "ensemble":
        assert layer.inducing_mean.shape == (8 if name.startswith("regression") else 5, *expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "line 1, column 2"),
        ('{\n  "inference": "ffg"\n  "max_sd": 1}', "line 3, column 3: Expecting ',' delimiter"),
        ("", "line 1, column 1"),
        ("[1]", r"expected an object such as .* found \[1\]"),
        ("{}", "expected an object such as"),
        ('"ffg"', 'expected an object such as .* found "ffg"'),
        ('{"inference": "ffg", "max_sd": 1, "max_sd": 2}', "key 'max_sd' is there twice"),
        ('{"0": {"inference": "ffg", "inference": "fcg"}}', "key 'inference' is there twice"),
        ('{"inference": "ffg", "max_sd": NaN}', "NaN is not valid JSON"),
        ({"inference": "fgg"}, "\"inference\": unknown inference \"fgg\"; expected one of .*'fcg', 'ffg'"),
        ({"inference": 3}, '"inference": unknown inference 3; expected one of'),
        ({"inference": {}}, '"inference": expected a family or'),
        ({"inference": "ffg", "max_sdd": 1}, "\"inference\": unknown option 'max_sdd' .did you mean 'max_sd'"),
        ({"inference": "ffg", "max_sd": "big"}, "\"inference\": max_sd must be a finite number > 0 or None, got 'big'"),
        ({"inference": {"fc": {"inference": "fgg"}}}, '"fc": unknown inference "fgg"'),
        ({"fc": {"inference": {"a": "ffg"}}}, '"fc": unknown inference {"a": "ffg"}'),
        ({"fc": {"inference": "fcg", "max_sd": 1}}, "\"fc\": unknown option 'max_sd'"),
        ({"fc": {"max_sd": 1}}, "\"fc\": expected a family, an object with 'inference', or null; found"),
        ({"fc": [1]}, '"fc": expected a family, .* found .1.'),
        ({"max_sd": 1}, "\"max_sd\": .* found 1; an option needs 'inference' beside it"),
        ({"inference": {"0": "ffg"}, "inducing_rows": 3}, '"inducing_rows": unknown option; expected .*max_sd'),
        ({"inference": {"0": "ffg"}, "max_sd": -3}, '"0": max_sd must be a finite number > 0'),
    ],
)
def test_mistakes_name_file_key_and_what_was_expected(config, message, tmp_path):
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        load(tmp_path, config)


def test_other_bytes_missing_file_and_folder(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"inference": "\xff"}')
    with pytest.raises(ValueError, match=r"config\.json: expected JSON in UTF-8"):
        bnn.load_config(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        bnn.load_config(tmp_path / "none.json")
    with pytest.raises(IsADirectoryError):
        bnn.load_config(tmp_path)


def test_long_values_are_cut_in_messages(tmp_path):
    with pytest.raises(ValueError, match=r"found \[0, 1, .*\.\.\.$"):
        load(tmp_path, {"fc": list(range(100))})
