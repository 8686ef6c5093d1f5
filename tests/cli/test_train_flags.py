"""The flags of `train`: every field of a recipe and its schedule is one, by itself, and none of them needs torch."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bnn._common.options import described
from bnn.cli.mistakes import Mistake
from bnn.cli.options import NETS, json_object, numbers
from bnn.cli.training import flags as module
from bnn.cli.training.describe import describe, rehearse
from bnn.cli.training.flags import Flags, flags, option, with_flags
from bnn.nn.nets.factory import NETWORKS
from bnn.train import Recipe, Schedule

PACKAGE = pathlib.Path(__file__).parents[2] / "bnn"
NET: dict[str, Any] = {"data": "digits", "net": "fcn", "hidden": "20,18"}


def test_every_field_is_a_flag_and_no_two_share_a_name() -> None:
    fields = [one.name for one in (*dataclasses.fields(Recipe), *dataclasses.fields(Schedule))]
    assert len(fields) == len(set(fields))
    assert set(fields) - set(flags()) == {"schedule", "ours"}
    spelled = [one.spelled() for one in flags().values()]
    assert len(spelled) == len(set(spelled))
    assert (option("warmup"), option("pretrain"), option("settings")) == ("--ml-epochs", "--pretrain-epochs", "--set")


def test_a_new_field_of_the_schedule_is_a_flag_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    new: Any = dataclasses.make_dataclass(
        "Schedule",
        [
            ("average", "float | None", described("Decay of an average of the weights.", default=None, least=0)),
            ("phases", "tuple[int, ...]", described("Its phases, as 3,4.", default=(), example="3,4")),
            ("bare", "bool", dataclasses.field(default=False)),
        ],
        bases=(Schedule,),
        frozen=True,
    )
    monkeypatch.setattr(module, "Schedule", new)
    seen: list[Flags] = []

    @with_flags
    def command(**typed: Any) -> None:
        seen.append(Flags(**typed))

    app = typer.Typer()
    app.command()(command)
    runner = CliRunner()
    shown = runner.invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "Decay of an average of the weights." in shown
    assert "--no-bare" in shown
    assert runner.invoke(app, ["--average", "0.5", "--phases", "5,6", "--bare"]).exit_code == 0
    assert seen[0].values("average", "phases", "bare", "lr") == {"average": 0.5, "phases": [5, 6], "bare": True}
    assert runner.invoke(app, ["--average", "-1"]).exit_code == 2


def recipe(**typed: Any) -> Recipe:
    return describe(Flags(**NET, **typed)).recipe


def test_flags_of_fields_that_only_set_reached_before() -> None:
    found = recipe(optimiser="sgd", momentum=0.5, clip=2.0, split=True, sampling="weight", refresh_batchnorm=False)
    changed = {"optimiser": "sgd", "momentum": 0.5, "clip": 2.0, "split": True, "sampling": "weight"}
    assert found.schedule == Schedule.of(recipe().schedule.to_dict() | changed | {"refresh_batchnorm": False})
    assert recipe(milestones="6,12", cosine=True).schedule.cosine
    assert not recipe(milestones="6,12").schedule.cosine
    found = recipe(kl_weights="1,0.1", name="mine", about="a try", together=True)
    assert (found.kl_weights, found.name, found.about, found.together) == ((1.0, 0.1), "mine", "a try", True)
    sizes = {"inducing_rows": 3, "inducing_cols": 3}
    assert recipe(rows=4, cols=4, global_inducing=json.dumps(sizes)).global_inducing == sizes
    assert recipe(teacher='{"weight": 0.3}').teacher == {"weight": 0.3}
    assert recipe(teacher="{}", settings=["teacher.temperature=3"]).teacher == {"temperature": 3}


def test_set_wins_over_a_flag_and_a_flag_over_a_preset() -> None:
    before = Recipe.preset("ours/digits-from-trained")
    for typed, lr in (
        ({}, before.schedule.lr),
        ({"lr": 0.3}, 0.3),
        ({"lr": 0.3, "settings": ["schedule.lr=0.2"]}, 0.2),
    ):
        assert describe(Flags(preset=before.name, **typed)).recipe.schedule.lr == lr


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"method": "deterministic", "split": True}, "--split is for Bayesian methods"),
        ({"method": "deterministic", "teacher": "{}"}, "--teacher is for Bayesian methods"),
        ({"kl_weights": "1;2"}, "--kl-weights must be numbers with commas between, as 1,0.1; got '1;2'"),
        ({"global_inducing": "[3]"}, "--global-inducing must be a JSON object, as {"),
    ],
)
def test_values_that_make_no_sense(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(Mistake) as raised:
        recipe(**typed)
    assert message in str(raised.value)


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(TypeError, match="unknown flag 'epoch'"):
        Flags(epoch=3)
    with pytest.raises(AttributeError, match="epoch"):
        Flags().epoch  # noqa: B018


def test_lists_and_objects() -> None:
    assert numbers("--x", "1,2.5", "") == [1.0, 2.5]
    with pytest.raises(Mistake, match="--x must be a JSON object"):
        json_object("--x", "{", "{}")


def test_networks_of_the_help_are_those_of_the_library() -> None:
    assert list(NETWORKS) == NETS


# ---- methods by name in recipes --------------------------------------------------------------------------------------


def stored(folder: pathlib.Path, **method: Any) -> str:
    file = folder / "recipe.json"
    file.write_text(json.dumps({"data": {"name": "digits"}, "net": {"name": "fcn", "hidden": [20]}, "method": method}))
    return str(file)


def test_a_recipe_may_name_a_method(tmp_path: pathlib.Path) -> None:
    file = stored(tmp_path, inference="ensemble-u")
    found = describe(Flags(file=file, members=3, rows=4, max_lamda=0.2))
    assert found.recipe.method == {
        "inference": "ensemble-u",
        "inducing_rows": 4,
        "max_lamda": 0.2,
        "init_lamda": 0.2,  # it starts at its cap
        "ensemble_size": 3,
    }
    size = rehearse(found.recipe, found.data)
    # 65 x 20 and 21 x 10, U of 4 x 16 and 4 x 10, three members
    assert size.parameters == (80 + 1040 + 20 + 192 + 1) + (40 + 210 + 14 + 120 + 1)
    assert describe(Flags(file=stored(tmp_path, inference="ffg-w"), max_sd=0.3)).recipe.method["max_sd"] == 0.3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compressed-ensemble", r"in a recipe, members=3 with the method 'ffg-u'"),
        ("deep-ensemble", r"'ensemble-w' is a deep ensemble .* members=5 with the method 'deterministic'"),
        ("fgg-u", r"unknown inference 'fgg-u' \(did you mean 'ffg-u'\?\)"),
    ],
)
def test_a_recipe_with_another_method_says_what_to_write(name: str, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.from_file(stored(tmp_path, inference=name))


# ---- without torch ---------------------------------------------------------------------------------------------------

# The package itself is stood in for, since what `bnn/__init__.py` imports is no matter of these modules.
IN_A_NEW_PROCESS = """
import sys, types
package = types.ModuleType("bnn")
package.__path__ = [sys.argv[1]]
sys.modules["bnn"] = package
import bnn._conversion.methods, bnn.train.recipe, bnn.train.schedule, bnn.train.presets
import bnn.cli.train, bnn.cli.count, bnn.cli.bench, bnn.cli.presets
bnn.train.presets()
print([name for name in sys.modules if name.split(".")[0] == "torch"])
"""


def test_declarations_and_help_need_no_torch() -> None:
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[]\n"
