"""Which key of an inference dict wins for which layer."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from helpers import bayesian
from torch import nn

import bnn
from bnn._conversion.selection import select


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1)
        self.act = nn.ReLU()
        self.fc = nn.Linear(3, 3)


class Net(nn.Module):
    """0 root, 1 stem, 2 act, 3 body, 4 body.0, 5-7 its conv act fc, 8 body.1, 9-11 likewise, 12 heads, 13 a, 14 b."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.act = nn.ReLU()
        self.body = nn.Sequential(Block(), Block())
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})


LAYERS = ["stem", "body.0.conv", "body.0.fc", "body.1.conv", "body.1.fc", "heads.a", "heads.b"]


def chosen(net: nn.Module, inference: dict[Any, Any]) -> dict[str, str]:
    """The family of each layer that was selected, among those that can be converted."""
    plain = (nn.Linear, nn.Conv1d)
    return {choice.name: choice.family for choice in select(net, inference) if isinstance(choice.module, plain)}


def everything(family: str, *but: str) -> dict[str, str]:
    return {name: family for name in LAYERS if name not in but}


def test_every_kind_of_key() -> None:
    net = Net()
    cases: list[tuple[Any, list[str]]] = [
        (net.body[1].fc, ["body.1.fc"]),
        ("body.1.fc", ["body.1.fc"]),
        (11, ["body.1.fc"]),
        (-4, ["body.1.fc"]),
        ("11", ["body.1.fc"]),  # JSON has no integer keys
        ("-1", ["heads.b"]),
        (nn.Conv1d, ["body.0.conv", "body.1.conv"]),
        ("Conv1d", ["body.0.conv", "body.1.conv"]),
        ("body.*.fc", ["body.0.fc", "body.1.fc"]),
        ("body.?.fc", ["body.0.fc", "body.1.fc"]),
        ("body.[1-9].fc", ["body.1.fc"]),
        ("heads.*", ["heads.a", "heads.b"]),
        ("*fc", ["body.0.fc", "body.1.fc"]),
        ("*", LAYERS),
        ("body.1", ["body.1.conv", "body.1.fc"]),  # containers, named each way
        (net.body[1], ["body.1.conv", "body.1.fc"]),
        (8, ["body.1.conv", "body.1.fc"]),
        (-7, ["body.1.conv", "body.1.fc"]),
        (Block, [name for name in LAYERS if name.startswith("body")]),
        ("Block", [name for name in LAYERS if name.startswith("body")]),
        ("body.*", [name for name in LAYERS if name.startswith("body")]),
        (nn.ModuleDict, ["heads.a", "heads.b"]),
        (net, LAYERS),
        ("", LAYERS),  # the name of the root
        (0, LAYERS),
        (-15, LAYERS),
        (Net, LAYERS),
    ]
    for key, names in cases:
        assert chosen(net, {key: "ffg"}) == dict.fromkeys(names, "ffg"), key


@pytest.mark.filterwarnings("ignore:inference keys without effect")
def test_precedence_on_one_layer() -> None:
    net = Net()
    keys: list[Any] = [net.body[1].fc, "body.1.fc", 11, -4, nn.Linear, "Linear", "body.1.f*"]
    for first in range(len(keys)):
        for second in range(first + 1, len(keys)):
            for order in ([first, second], [second, first]):  # whatever the order of the dict
                inference = {keys[i]: {"inference": "ffg" if i == first else "fcg"} for i in order}
                assert chosen(net, inference)["body.1.fc"] == "ffg", (keys[first], keys[second])


def test_any_key_on_a_layer_beats_any_key_on_its_containers() -> None:
    net = Net()
    for container in (net.body[1], "body.1", 8, -7, Block, "Block", "body.[1]"):
        for key in (net.body[1].fc, "body.1.fc", 11, -4, nn.Linear, "Linear", "*.fc"):
            got = chosen(net, {container: "fcg", key: "ffg"})
            assert got["body.1.fc"] == "ffg", (container, key)
            assert got["body.1.conv"] == "fcg"


@pytest.mark.filterwarnings("ignore:inference keys without effect")
def test_the_nearest_container_wins() -> None:
    net = Net()
    assert chosen(net, {net: "ffg", "body": "fcg", "body.1": "inducing"}) == everything("ffg") | {
        "body.0.conv": "fcg",
        "body.0.fc": "fcg",
        "body.1.conv": "inducing",
        "body.1.fc": "inducing",
    }
    assert chosen(net, {"body.*": "inducing", net.body: "fcg"})["body.1.fc"] == "inducing"  # a glob on nearer ones


def test_none_leaves_a_layer_alone() -> None:
    net = Net()
    for nothing in (None, {"inference": None}):
        assert chosen(net, {net: "ffg", "heads": nothing}) == everything("ffg", "heads.a", "heads.b")
        assert chosen(net, {net: "ffg", "heads": nothing, "heads.b": "fcg"}) == everything("ffg", "heads.a") | {
            "heads.b": "fcg"
        }
        assert chosen(net, {net: "ffg", nn.ReLU: nothing}) == everything("ffg")


def test_digits_are_names_before_they_are_indices() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert chosen(net, {"0": "ffg"}) == {"0": "ffg"}  # not the root, which has index 0
    assert chosen(net, {"2": "ffg"}) == {"2": "ffg"}
    assert chosen(net, {0: "ffg"}) == {"0": "ffg", "2": "ffg"}
    assert chosen(net, {3: "ffg"}) == chosen(net, {"3": "ffg"}) == {"2": "ffg"}


def test_a_module_may_be_called_like_a_class_or_a_glob() -> None:
    net = nn.ModuleDict({"Linear": nn.Conv1d(1, 1, 1), "x": nn.Linear(1, 1), "[x]": nn.Linear(1, 1)})
    assert chosen(net, {"Linear": "ffg", nn.Linear: "fcg"}) == {"Linear": "ffg", "x": "fcg", "[x]": "fcg"}
    assert chosen(net, {"[x]": "ffg", nn.Linear: "fcg"})["[x]"] == "ffg"


def test_a_tied_layer_answers_to_all_its_names() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Sequential(nn.Linear(2, 2))})
    net["b"] = net["a"]
    net["c"].append(net["a"])
    for key in ("a", "b", "c.1"):
        assert chosen(net, {key: "ffg"}) == {"a": "ffg"}
    assert chosen(net, {"c": "fcg"}) == {"a": "fcg", "c.0": "fcg"}
    assert chosen(net, {"c": "fcg", "b": "ffg"}) == {"a": "ffg", "c.0": "fcg"}


def test_options_belong_to_their_key() -> None:
    net = Net()
    choices = {c.name: c for c in select(net, {"heads": {"inference": "FFG", "init_sd": 0.1}, "stem": "fcg"})}
    assert choices["heads.b"].options == {"init_sd": 0.1}
    assert choices["stem"].options == {}
    assert choices["heads.a"].family == "FFG"


def test_the_dict_is_left_alone() -> None:
    net = Net()
    inference: dict[Any, Any] = {
        nn.Linear: {"inference": "inducing", "inducing_rows": 2},
        "body": {"inference": "ffg"},
        "stem": None,
    }
    before = copy.copy(inference), [copy.deepcopy(value) for value in inference.values()]
    bnn.bayesianize_(net, inference, prior_sd=0.5, init_sd=0.1)
    assert inference == before[0]
    assert list(inference.values()) == before[1]
    assert net.heads["a"].options.prior_sd == 0.5  # keyword options are defaults of all entries that know them
    assert net.body[0].conv.options.init_sd == 0.1


def test_from_json() -> None:
    text = '{"-1": {"inference": "ffg"}, "Conv1d": {"inference": "inducing", "inducing_rows": 1}, "stem": null}'
    net = Net()
    bnn.bayesianize_(net, json.loads(text))
    assert bayesian(net) == ["body.0.conv", "body.1.conv", "heads.b"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("stam", r"'stam' matches no module of this network \(did you mean 'stem'\?\)"),
        ("linear", r"'linear' matches no module of this network \(did you mean 'Linear'\?\)"),
        ("body.9.*", r"'body.9.\*' matches no module"),
        (15, r"15 matches no module.*an index below 15"),
        (-16, r"-16 matches no module"),
        ("15", r"'15' matches no module"),
        (nn.Conv2d, r"Conv2d matches no module"),
        (nn.Linear(1, 1), r"of Linear matches no module"),
        (True, r"True matches no module"),
        (1.0, r"1.0 matches no module"),
        (None, r"None matches no module"),
    ],
)
def test_a_key_that_matches_nothing(key: Any, message: str) -> None:
    net = Net()
    with pytest.raises(ValueError, match=message):
        bnn.bayesianize_(net, {"stem": "ffg", key: "ffg"})
    with pytest.raises(ValueError, match=message):
        bnn.bayesianize_(net, {"stem": "ffg", key: None})
    assert bayesian(net) == []


@pytest.mark.parametrize("key", ["act", 2, nn.ReLU, "ReLU", "*act"])
def test_a_key_that_names_nothing_with_weights(key: Any) -> None:
    net = Net()
    with pytest.raises(
        ValueError, match=r"names \['ReLU'\], with nothing to convert: no layer of \['Linear', 'Conv1d'"
    ):
        bnn.bayesianize_(net, {"stem": "ffg", key: "ffg"})
    assert bayesian(net) == []


@pytest.mark.parametrize("value", [1, {}, {"inducing_rows": 3}, {"inference": 3}, ["ffg"], True])
def test_a_value_that_is_no_choice(value: Any) -> None:
    with pytest.raises(ValueError, match=r"inference\['stem'\] must be a family name"):
        bnn.bayesianize_(Net(), {"stem": value})


def test_a_parameter_is_no_key() -> None:
    net = Net()
    with pytest.raises(ValueError, match="matches no module"):
        bnn.bayesianize_(net, {net.stem.weight: "ffg"})
    with pytest.raises(ValueError, match="matches no module"):
        bnn.bayesianize_(net, {"stem.weight": "ffg"})
    with pytest.raises(TypeError, match="inference must be a family name or a dict, got list"):
        bnn.bayesianize_(net, ["ffg"])  # type: ignore[arg-type]
    assert torch.is_tensor(net.stem.weight)


def test_keys_without_effect_are_named():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"keys without effect: '0\*'"):
        bnn.bayesianize_(net, {nn.Linear: "ffg", "0*": "fcg"})


def test_the_more_literal_glob_wins():
    net = nn.ModuleDict({"enc": nn.Sequential(nn.Linear(2, 2)), "dec": nn.Linear(2, 2)})
    bnn.bayesianize_(net, {"*": "ffg", "enc.*": "fcg"})
    assert (net["enc"][0].family, net["dec"].family) == ("fcg", "ffg")
