"""Methods: one registry, whose formulas count what conversion makes, and whose names `bayesianize_` takes."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import choose_ways
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bnn
from bnn._conversion.methods import METHODS, PLAIN, conversions, find, get, layer_shape
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.functional.cost import Way
from bnn.nn.base import families, pairing
from bnn.nn.families import ways
from bnn.nn.nets import FCN

LAYERS = {
    "linear": nn.Linear(70, 9),
    "no bias": nn.Linear(5, 20, bias=False),
    "wide": nn.Linear(64, 80),
    "conv": nn.Conv2d(3, 6, (3, 2)),
    "grouped": nn.Conv2d(4, 8, 3, groups=2),
}


@pytest.fixture
def same_methods() -> Iterator[None]:
    """Forgets the methods that a test adds."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def made(layer: nn.Module, name: str, **options: Any) -> nn.Module:
    """A network of one layer under a method, with as many networks as it has."""
    method, net = METHODS[name], nn.Sequential(copy.deepcopy(layer))
    whole: nn.Module = (
        net if method.networks == 1 else bnn.Ensemble([copy.deepcopy(net) for _ in range(method.networks)])
    )
    if method.family != PLAIN:
        bnn.bayesianize_(whole, "ffg-u" if method.networks > 1 else name, **options)
    return whole


@pytest.mark.parametrize("layer", list(LAYERS))
@pytest.mark.parametrize("name", list(METHODS))
def test_a_formula_counts_what_conversion_makes(name: str, layer: str) -> None:
    """Bias, D and lamda included, with the method's own sizes and with others."""
    plain = copy.deepcopy(LAYERS[layer]).to("meta")
    d_out, d_in = layer_shape(plain, "ffg")
    more: dict[str, Any] = {"init": "paper"} if METHODS[name].size is not None else {}
    found = bnn.parameter_count(made(plain, name, **more))
    assert found == METHODS[name].parameters(d_out, d_in, c_in=plain.weight.shape[1])
    if more:
        found = bnn.parameter_count(made(plain, name, **more, **METHODS[name].sizes(7, 3)))
        assert found == METHODS[name].parameters(d_out, d_in, rows=7, cols=3)


def test_other_numbers_of_members() -> None:
    net = nn.Sequential(nn.Linear(20, 10))
    bnn.bayesianize_(net, "ensemble-u", ensemble_size=3)
    assert bnn.parameter_count(net) == METHODS["ensemble-u"].parameters(10, 21, K=3)
    assert METHODS["ensemble-w"].parameters(10, 21, K=2) == 420
    for name, option in (("rank-1", "components"), ("batch-ensemble", "ensemble_size")):
        net = nn.Sequential(nn.Conv2d(4, 10, 3, groups=2))
        bnn.bayesianize_(net, name, **{option: 3})
        assert bnn.parameter_count(net) == METHODS[name].parameters(10, 2 * 9 + 1, K=3, c_in=2)
        assert METHODS[name].parameters(10, 21, K=3) == METHODS[name].parameters(10, 21, K=3, c_in=21)


@pytest.mark.parametrize("name", conversions())
def test_a_method_by_name_has_its_options_and_a_family_its_own(name: str) -> None:
    method, net = METHODS[name], FCN([6, 70, 5])
    bnn.bayesianize_(net, name.upper())
    for layer in net.modules():
        if isinstance(layer, bnn.nn.BayesianLayer):
            assert layer.family == method.family
            own = method.layer_options(layer.d_out, layer.d_in)
            assert {option: getattr(layer.options, option) for option in own} == own
    bare = bayesian_from_template(nn.Linear(6, 70), method.family).options
    own_sizes = {name: getattr(bare, name) for name in method.size_names if name in bare.names()}
    assert bare == type(bare)(**own_sizes)


def test_sizes_and_priors_follow_the_layer() -> None:
    net: Any = FCN([6, 70, 5])
    bnn.bayesianize_(net, "ffg-u")
    assert [tuple(layer.inducing_mean.shape) for layer in (net.Linear0, net.Linear1)] == [(7, 7), (5, 5)]
    assert [layer.prior_sd() for layer in (net.Linear0, net.Linear1)] == [1.0, 8 / 71**0.5]


def test_options_that_are_given_win() -> None:
    given: dict[str, Any] = {"max_lamda": 0.2, "inducing_rows": 3, "prior_sd": 0.5}
    for inference, more in (("ffg-u", given), ({"Linear": {"inference": "ffg-u", **given}}, {}), ({0: "ffg-u"}, given)):
        net: Any = FCN([6, 70, 5])
        bnn.bayesianize_(net, inference, **more)
        for layer in (net.Linear0, net.Linear1):
            options = layer.options
            assert (options.max_lamda, options.init_lamda, options.max_sd_u) == (0.2, 0.03, 0.1)
            assert (options.inducing_rows, options.inducing_cols) == (3, min(16, layer.d_in, layer.d_out))
            assert (options.prior_sd, options.sqrt_width_scaling) == (0.5, True)  # the rule for narrow layers is ours


def test_methods_of_several_layers_in_one_dict() -> None:
    net: Any = FCN([6, 70, 5])
    bnn.bayesianize_(net, {"Linear0": "ensemble_u", "Linear1": "ffg"})
    assert net.Linear0.options.q_inducing == "ensemble"
    assert net.Linear1.options.max_sd is None
    assert bayesian_from_template(nn.Linear(3, 2), "ffg-w").options.max_sd == 0.1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "deterministic",
            "'deterministic' is a plain network, no conversion of one network: leave the network as it is",
        ),
        ("ensemble-w", r"use bnn.Ensemble\(net, members=5\)"),
        ("Deep_Ensemble", r"'ensemble-w' is a deep ensemble of plain networks"),
        ("compressed-ensemble", r'bnn.Ensemble\(net, members=3\), then bnn.bayesianize_\(ensemble, "ffg-u"\)'),
        ("fgg-u", r"unknown inference 'fgg-u'; expected one of \[.*'fcg'.*or a method: \['ffg-w', 'fcg-w', 'ffg-u'"),
    ],
)
def test_what_is_no_conversion_of_one_network_says_what_to_do(name: str, message: str) -> None:
    for inference in (name, {"Linear0": name}, {"Linear0": {"inference": name}}):
        net = FCN([6, 7, 5])
        with pytest.raises(ValueError, match=message):
            bnn.bayesianize_(net, inference)
        assert not any(isinstance(module, bnn.nn.BayesianLayer) for module in net.modules())


def test_configurations_may_name_methods(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"inference": {"Linear0": {"inference": "ffg-u", "max_lamda": 0.2}}, "max_sd_u": 0.3}))
    net: Any = FCN([6, 7, 5])
    bnn.bayesianize_(net, **bnn.load_config(file))
    assert (net.Linear0.options.max_lamda, net.Linear0.options.max_sd_u, net.Linear0.options.init_lamda) == (
        0.2,
        0.3,
        0.03,
    )
    for config, message in (
        ({"inference": "ensemble-w"}, r'"inference": \'ensemble-w\' is a deep ensemble.*bnn.Ensemble'),
        ({"inference": "ffg-u", "max_sd": 1}, "unknown option 'max_sd'"),
        ({"Linear0": "fgg-u"}, r'"Linear0": unknown inference "fgg-u"; expected one of .*method'),
    ):
        file.write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            bnn.load_config(file)


def test_a_network_converted_by_a_method_survives_a_file(tmp_path: pathlib.Path) -> None:
    net, again = FCN([6, 7, 5]), FCN([6, 7, 5])
    bnn.bayesianize_(net, "matrix-u")
    bnn.save(net, tmp_path / "net.safetensors")
    bnn.load_(again, tmp_path / "net.safetensors")
    assert {name: tensor.shape for name, tensor in again.state_dict().items()} == {
        name: tensor.shape for name, tensor in net.state_dict().items()
    }


# ---- multiplies ------------------------------------------------------------------------------------------------------

N, K = 3, 4  # rows, draws


def counted(name: str, d_out: int, d_in: int, **options: Any) -> int:
    """Multiplies of all products of matrices of a layer without a bias, for K draws of N rows of their own."""
    method = METHODS[name]
    knows = method.family != PLAIN and "sampling" in pairing(method.family, nn.Linear).options_type.names()
    net = made(nn.Linear(d_in, d_out, bias=False), name, **options, **({"sampling": "weight"} if knows else {}))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        if method.family == PLAIN and method.networks == 1:
            net(torch.randn(N, d_in))
        elif method.networks > 1:
            bnn.draws(net, torch.randn(N, d_in), method.networks)
        else:
            draw = Draw(Call(net, K, restarts=True), K, Seeds(net, 1), inputs=N, folded=True)
            in_one_pass(net, torch.randn(K, N, d_in), draw, dims=0)
    return counter.get_total_flops() // 2  # a multiply and an addition each


@pytest.mark.parametrize(("d_out", "d_in"), [(40, 70), (33, 17)])
@pytest.mark.parametrize("name", list(METHODS))
def test_multiplies_are_those_of_a_forward(name: str, d_out: int, d_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every method that is registered, with its own sizes of U and with others."""
    method, networks = METHODS[name], METHODS[name].networks
    draws = networks if networks > 1 else K  # each network is one
    assert method.multiplies, f"say how many multiplies a layer takes: Method({name!r}, multiplies=...)"
    least = (Way.PER_ROW_WITHOUT_COLUMNS, Way.PER_ROW)  # where W need not be drawn at all; of points, two plain layers
    choose_ways(monkeypatch, lambda ways, size: next((way for way in least if way in ways), ways[0]))
    monkeypatch.setattr(ways, "COLUMN_BYTES", 0)  # small C are drawn for all networks at once, by each of them
    assert counted(name, d_out, d_in) == method.work(d_out, d_in, N=N, K=draws)
    if method.size is not None:
        rows, cols = (7, 3) if len(method.size_names) == 2 else (3, 3)
        found = counted(name, d_out, d_in, **dict(zip(method.size_names, (rows, cols), strict=False)))
        assert found == method.work(d_out, d_in, N=N, K=draws, rows=rows, cols=cols)


# ---- the registry ----------------------------------------------------------------------------------------------------


def test_every_family_has_a_method_and_every_method_a_family() -> None:
    assert {method.family for method in METHODS.values()} == {PLAIN, *families()}
    assert all(find(family) is not None for family in families())
    assert bnn.methods() == METHODS
    assert bnn.methods() is not METHODS
    assert json.loads(json.dumps({name: one.to_dict() for name, one in METHODS.items()})).keys() == METHODS.keys()


def test_names_in_any_spelling() -> None:
    assert [get(typed).name for typed in ("FFG_U", "ffgu", "Inducing", "ensemble")] == [
        "ffg-u",
        "ffg-u",
        "ffg-u",
        "ensemble-w",
    ]
    with pytest.raises(ValueError, match=r"unknown method 'inducin' \(did you mean 'inducing'\?\); expected one of"):
        get("inducin")


@pytest.mark.usefixtures("same_methods")
def test_a_method_is_one_entry() -> None:
    mine = dataclasses.replace(METHODS["ffg-u"], name="tiny-u", aliases=(), size=2)
    bnn.register_method(mine)
    net: Any = FCN([6, 7, 5])
    bnn.bayesianize_(net, "tiny-u")
    assert net.Linear0.inducing_mean.shape == (2, 2)
    for change, message in (
        ({}, "there is a method 'tiny-u' already"),
        ({"name": "Tiny"}, "a method's name is of small letters"),
        ({"name": "other", "aliases": ("FFG",)}, "a method's name is of small letters"),
        ({"name": "other", "aliases": ("ffg",)}, "there is a method 'ffg' already"),
        ({"name": "other", "networks": 2}, "say with instead= what to do"),
        ({"name": "other", "formula": "d_out - 1"}, "a formula is of d_out, d_in, M_out, M_in, c_in, K"),
        ({"name": "other", "formula": "width d_in"}, "got 'width'"),
        ({"name": "other", "formula": "N d_in"}, "got 'N'"),
        ({"name": "other", "multiplies": "N width"}, "a formula is of d_out, d_in, M_out, M_in, K, N"),
    ):
        with pytest.raises(ValueError, match=message):
            bnn.register_method(dataclasses.replace(mine, **change))
