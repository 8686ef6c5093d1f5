"""From flags to recipes: what each flag changes, alone and on top of a file or a preset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_data import arrays, flowers, photos, prices

import bnn
from bnn._conversion.methods import METHODS
from bnn.cli.training import sources
from bnn.cli.training.describe import describe, rehearse
from bnn.cli.training.flags import Flags
from bnn.train import Recipe, presets

FFG_U: dict[str, Any] = {
    "prior_sd": 8.0,
    "sqrt_width_scaling": True,
    "max_lamda": 0.03,
    "init_lamda": 0.03,
    "max_sd_u": 0.1,
}


def square(size: int, narrow: bool = False) -> dict[str, Any]:
    """The entry of a layer; those with fewer than 64 inputs have a prior sd of 1."""
    prior = {"prior_sd": 1.0, "sqrt_width_scaling": False} if narrow else {}
    return {"inference": "inducing", "inducing_rows": size, "inducing_cols": size} | prior


def recipe(**flags: Any) -> Recipe:
    return describe(Flags(**flags)).recipe


def test_a_table_by_flags_alone(tmp_path: Path) -> None:
    path = str(flowers(tmp_path))
    found = describe(Flags(data=path, target="kind", seed=3))
    assert found.recipe.data == {"csv": path, "validation": 0.1, "target": "kind"}
    assert found.recipe.net == {"name": "fcn"}
    # 4 inputs with the bias, 64 hidden, 3 classes: no inducing matrix larger than its layer
    layers = {"Linear": square(16), "Linear0": square(4, narrow=True), "Linear2": square(3)}
    assert found.recipe.method == {"inference": layers} | FFG_U
    plain, schedule = found.recipe.pretrain, found.recipe.schedule
    assert plain is not None  # 63 rows: two steps per epoch, so 300 epochs for 600 steps
    assert (plain.epochs, plain.batch_size, plain.lr, plain.cosine, plain.patience) == (300, 32, 5e-3, True, 60)
    assert (schedule.epochs, schedule.batch_size, schedule.lr, schedule.cosine) == (150, 32, 5e-3, True)
    assert (schedule.samples, schedule.kl_weight, schedule.patience) == (1, 1.0, None)
    assert (found.recipe.members, found.recipe.seed) == (1, 3)
    assert found.folder == os.path.join("runs", "flowers-fcn-ffg-u-seed3")
    assert [len(part) for part in (found.data.train, found.data.validation, found.data.test) if part] == [63, 9, 18]


def test_the_default_takes_fewer_parameters_than_the_plain_network(tmp_path: Path) -> None:
    for flags in (
        Flags(data=str(flowers(tmp_path)), target="kind"),
        Flags(data=str(prices(tmp_path)), target="price"),
        Flags(data="digits"),
        Flags(data=str(photos(tmp_path))),
    ):
        for method in ("ffg-u", "matrix-u", "ensemble-u", "fcg-u"):
            found = describe(flags.but(method=method))
            size = rehearse(found.recipe, found.data)
            assert size.parameters < size.plain, (flags.data, method)
            assert size.plain == sum(p.numel() for p in plain(found.recipe, found.data).parameters())


def plain(one: Recipe, data: bnn.data.Data) -> Any:
    return bnn.train.build.build_net(one.net, data.in_shape, data.out_features)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"drop": "note"}, {"drop": ["note"]}),
        ({"drop": "note, width"}, {"drop": ["note", "width"]}),
        ({"task": "classification"}, {"task": "classification"}),
        ({"test": "0.3", "validation": 0.2}, {"test": 0.3, "validation": 0.2}),
        ({"validation": 0.0}, {"validation": 0.0}),
        ({"settings": ("data.seed=4",)}, {"seed": 4}),
    ],
)
def test_flags_about_a_table(flags: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    path = str(flowers(tmp_path))
    common = {"csv": path, "validation": 0.1, "target": "kind"}
    assert recipe(data=path, target="kind", **flags).data == common | expected


def test_test_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = str(flowers(tmp_path / "other", rows=12, seed=1))
    found = describe(Flags(data=str(flowers(tmp_path)), target="kind", test=other))
    assert found.recipe.data["test"] == other
    assert found.data.test is not None
    assert len(found.data.test) == 12


def test_named_sets_by_any_spelling() -> None:
    assert recipe(data="Digits").data == {"name": "digits", "validation": 0.1}
    assert recipe(data="digits", validation=0.0).data == {"name": "digits"}
    assert recipe(data="digits").net == {"name": "cnn", "maxpool_freq": 2}  # 8 x 8 pixels
    assert recipe(data="digits", net="fcn", hidden="32").net == {"name": "fcn", "hidden": [32]}
    small = {"in_channels": 1, "kernel_size": 3, "remove_maxpool": True}
    assert recipe(data="digits", net="ResNet18").net == {"name": "resnet18"} | small


def test_arrays_keep_the_parts_they_have(tmp_path: Path) -> None:
    path = str(arrays(tmp_path / "a.npz"))
    assert recipe(data=path).data == {"arrays": path, "test": 0.2, "validation": 0.1}
    x, y = np.zeros((4, 3)), np.arange(4.0)
    path = str(arrays(tmp_path / "b.npz", x_test=x, y_test=y, x_validation=x, y_validation=y))
    assert recipe(data=path).data == {"arrays": path}
    assert recipe(data=path, task="regression").data == {"arrays": path, "task": "regression"}


def test_pictures_of_one_small_size_stay_as_they_are(tmp_path: Path) -> None:
    path = str(photos(tmp_path))
    assert recipe(data=path).data == {"folder": path, "validation": 0.1}
    assert recipe(data=path, image_size="10").data == {"folder": path, "validation": 0.1, "size": 10}
    assert recipe(data=path, image_size="8x10").data == {"folder": path, "validation": 0.1, "size": [8, 10]}


@pytest.mark.parametrize("sides", [(12, 14), (80,)])
def test_pictures_of_other_sizes_are_scaled(sides: tuple[int, ...], tmp_path: Path, capsys: Any) -> None:
    assert recipe(data=str(photos(tmp_path, sides=sides))).data["size"] == 32
    assert "scaled to 32 x 32" in capsys.readouterr().err


NET = {"data": "digits", "net": "fcn", "hidden": "20,18"}


@pytest.mark.parametrize(
    ("typed", "method", "more"),
    [
        ("deterministic", {"inference": "deterministic"}, {}),
        ("FFG_W", {"inference": "ffg"} | METHODS["ffg-w"].options, {}),
        ("ffg", {"inference": "ffg"} | METHODS["ffg-w"].options, {}),
        ("fcg-w", {"inference": "fcg"} | METHODS["fcg-w"].options, {}),
        ("fcg", {"inference": "fcg"} | METHODS["fcg-w"].options, {}),
        ("ensemble-w", {"inference": "deterministic"}, {"members": 5}),
    ],
)
def test_methods_without_inducing_weights(typed: str, method: dict[str, Any], more: dict[str, Any]) -> None:
    found = recipe(**NET, method=typed)
    assert found.method == method
    assert {name: getattr(found, name) for name in more} == more


@pytest.mark.parametrize(
    ("typed", "q", "size"),
    [
        ("ffg-u", {"max_sd_u": 0.1}, 16),
        ("Inducing", {"max_sd_u": 0.1}, 16),
        ("matrix_u", {"q_inducing": "matrix"}, 16),
        ("FCG-U", {"q_inducing": "full"}, 6),
        ("ensemble-u", {"q_inducing": "ensemble", "ensemble_size": 5}, 16),
    ],
)
def test_methods_of_inducing_weights(typed: str, q: dict[str, Any], size: int) -> None:
    found = recipe(**NET, method=typed)
    common = {name: value for name, value in FFG_U.items() if name != "max_sd_u"}
    # 65 x 20, 21 x 18, 19 x 10: the last is narrower than 16
    layers = {"Linear": square(size), "1.Linear1": square(size, True), "1.Linear2": square(min(size, 10), True)}
    assert found.method == {"inference": layers} | common | q
    assert found.schedule.samples == q.get("ensemble_size", 1)


def test_several_networks_name_their_layers_alike() -> None:
    found = describe(Flags(**NET, method="compressed-ensemble"))
    assert found.recipe.members == 3
    assert found.recipe.pretrain is not None
    assert list(found.recipe.method["inference"]) == ["members", "*.1.Linear1", "*.1.Linear2"]
    size, one = rehearse(found.recipe, found.data), describe(Flags(**NET))
    assert size.networks == 3
    assert size.parameters == 3 * rehearse(one.recipe, one.data).parameters
    assert recipe(**NET, method="compressed-ensemble", members=2).members == 2
    assert recipe(**NET, method="deterministic", members=4).members == 4


def test_sizes_and_caps_by_flags() -> None:
    found = recipe(**NET, rows=7, cols=9, max_lamda=0.2, max_sd=0.3).method
    for layer, entry in found["inference"].items():
        own = {"inducing_rows": 7, "inducing_cols": 9, "max_lamda": 0.2, "max_sd_u": 0.3}
        assert entry == square(16, narrow=layer != "Linear") | own
    assert found["init_lamda"] == 0.2
    assert [one["inducing_cols"] for one in recipe(**NET, rows=7).method["inference"].values()] == [16, 16, 10]
    wide = recipe(data="digits", net="fcn", hidden="80,80", rows=7, cols=9).method
    assert wide == FFG_U | {"inference": "inducing", "inducing_rows": 7, "inducing_cols": 9}
    for method in ("ffg-w", "matrix-w", "k-tied"):
        assert recipe(**NET, method=method, max_sd=0.3).method["max_sd"] == 0.3
    found = recipe(**NET, max_lamda=0).method
    assert all(one["max_lamda"] == 0 for one in found["inference"].values())
    found = recipe(**NET, method="ensemble-u", members=3)
    assert all(one["ensemble_size"] == 3 for one in found.method["inference"].values())
    assert found.schedule.samples == 3


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"epochs": 7}, {"epochs": 7}),
        ({"epochs": 9, "warmup": 3.0, "anneal": 2.0}, {"epochs": 9, "warmup": 3, "anneal": 2, "lr": 0.02}),
        ({"lr": 0.5, "batch_size": 9, "samples": 3, "kl_weight": 0.2}, {"lr": 0.5, "batch_size": 9, "samples": 3}),
        ({"milestones": "6,12"}, {"milestones": (6, 12), "cosine": False}),
        ({"patience": 4}, {"patience": 4}),
        ({"settings": ("schedule.clip=1.5", "schedule.optimiser=sgd")}, {"clip": 1.5, "optimiser": "sgd"}),
    ],
)
def test_flags_of_the_schedule(flags: dict[str, Any], expected: dict[str, Any]) -> None:
    usual, found = recipe(**NET).schedule, recipe(**NET, **flags).schedule
    expected |= {"kl_weight": flags["kl_weight"]} if "kl_weight" in flags else {}
    assert found == type(usual).of(usual.to_dict() | expected)


def test_training_plain_first() -> None:
    found = recipe(**NET, pretrain=4)
    plain = recipe(**NET, method="deterministic").schedule
    assert found.pretrain == type(plain).of(plain.to_dict() | {"epochs": 4, "patience": 5})
    usual, scratch = recipe(**NET), recipe(**NET, pretrain=0)
    assert usual.pretrain == plain
    assert scratch.pretrain is None
    assert (usual.schedule.lr, scratch.schedule.lr) == (0.005, 0.02)
    assert recipe(**NET, epochs=3).pretrain == type(plain).of(plain.to_dict() | {"epochs": 6, "patience": 5})
    assert recipe(**NET, validation=0.0).pretrain == type(plain).of(plain.to_dict() | {"patience": None, "epochs": 15})
    for flags in ({"warmup": 3.0}, {"anneal": 3.0}):  # the paper's way
        assert recipe(**NET, **flags).pretrain is None


def test_likelihood_and_a_network_with_two_outputs(tmp_path: Path) -> None:
    found = describe(Flags(data=str(prices(tmp_path)), target="price", likelihood="heteroscedastic"))
    assert found.recipe.likelihood == "heteroscedastic"
    assert found.recipe.method["inference"]["Linear2"] == square(2)
    assert rehearse(found.recipe, found.data).plain == 2 * 64 + 65 * 64 + 65 * 2


def test_weights_to_start_from(tmp_path: Path) -> None:
    data = bnn.data.load("digits")
    bnn.save(bnn.nn.nets.FCN([2, 3]), tmp_path / "net.safetensors")
    found = recipe(**NET, method="compressed-ensemble", weights=str(tmp_path / "net.safetensors"))
    assert found.weights == str(tmp_path / "net.safetensors")
    assert found.pretrain is None
    with pytest.raises(ValueError, match="does not fit"):
        rehearse(found, data)


BASES = [
    "ours/digits-from-trained",
    "ours/digits-ensemble-u",
    "ours/digits-compressed-ensemble",
    "ours/digits-deterministic",
]


@pytest.mark.parametrize("name", BASES)
def test_a_preset_alone_is_the_preset(name: str) -> None:
    found = describe(Flags(preset=name))
    assert found.recipe == presets()[name]
    assert found.folder == os.path.join("runs", f"{name.replace('/', '-')}-seed0")


def test_flags_on_top_of_a_preset() -> None:
    before = presets()["ours/digits-from-trained"]
    found = recipe(preset=before.name, epochs=3, pretrain=2, rows=5, seed=4, lr=0.1, hidden="40")
    assert found == before.but(
        schedule={"epochs": 3, "lr": 0.1},
        pretrain={"epochs": 2},
        method=before.method | {"inducing_rows": 5},
        net=before.net | {"hidden": [40]},
        seed=4,
    )
    assert recipe(preset=before.name, settings=("data.first=50",)).data == before.data | {"first": 50}
    assert recipe(preset=before.name, settings=("kl_weights=[1.0, 0.1]",)).kl_weights == (1.0, 0.1)
    assert recipe(preset=before.name, settings=("method.prior_sd=2",)).method == before.method | {"prior_sd": 2}
    assert recipe(preset=before.name, pretrain=0).pretrain is None
    assert recipe(preset=before.name, validation=0.2).data == before.data | {"validation": 0.2}
    other = recipe(preset=before.name, net="fcn")
    assert other.net == {"name": "fcn"}
    ensemble = recipe(preset="ours/digits-ensemble-u", members=3)
    assert (ensemble.method["ensemble_size"], ensemble.schedule.samples, ensemble.members) == (3, 3, 1)


def test_another_method_takes_over_what_it_has_the_option_for(tmp_path: Path) -> None:
    before = presets()["ours/digits-from-trained"].but(schedule={"sampling": "weight"})
    (tmp_path / "recipe.json").write_text(json.dumps(before.to_dict()))
    file = str(tmp_path / "recipe.json")
    kept = [recipe(file=file, method=method).schedule.sampling for method in ("matrix-u", "deterministic")]
    assert kept == ["weight", None]


def test_another_method_on_top_of_a_preset() -> None:
    before = presets()["ours/digits-from-trained"]
    found = recipe(preset=before.name, method="ensemble-u")
    assert found.method["q_inducing"] == "ensemble"
    assert found.schedule == type(found.schedule).of(before.schedule.to_dict() | {"samples": 5})
    assert found.pretrain == before.pretrain


def test_flags_on_top_of_a_file(tmp_path: Path) -> None:
    path = flowers(tmp_path)
    stored = {"data": {"csv": "flowers.csv", "target": "kind"}, "net": {"name": "fcn", "hidden": [8]}, "seed": 2}
    (tmp_path / "my.run.json").write_text(json.dumps(stored))
    found = describe(Flags(file=str(tmp_path / "my.run.json")))
    assert found.recipe == Recipe.from_file(tmp_path / "my.run.json").but(name=found.recipe.name)
    assert found.folder == os.path.join("runs", "my.run-seed2")
    changed = recipe(file=str(tmp_path / "my.run.json"), drop="note", hidden="9,9", method="ffg-w")
    assert changed.data == {"csv": str(path), "target": "kind", "drop": ["note"]}
    assert changed.net == {"name": "fcn", "hidden": [9, 9]}
    assert changed.method["inference"] == "ffg"


@pytest.mark.parametrize("method", list(METHODS))
def test_a_recipe_by_flags_is_a_recipe_by_file(method: str, tmp_path: Path) -> None:
    found = describe(Flags(data=str(flowers(tmp_path)), target="kind", method=method, hidden="6", epochs=3))
    (tmp_path / "recipe.json").write_text(json.dumps(found.recipe.to_dict()))
    again = describe(Flags(file=str(tmp_path / "recipe.json")))
    assert again.recipe == found.recipe
    assert rehearse(again.recipe, again.data).parameters == rehearse(found.recipe, found.data).parameters


def test_names_for_folders() -> None:
    assert sources.label({"folder": "my photos/"}) == "my photos"
    assert sources.label({"arrays": "a/b.npz"}) == "b"
