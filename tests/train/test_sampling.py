"""`bnn.fit(sampling=...)`: in force in training steps and nowhere else."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES, sizes_of
from small_runs import blobs, plain_net, run, same
from torch import Tensor, nn, optim

import bnn
from bnn._common.seeds import derived
from bnn.data.batches import Place
from bnn.nn.base import families, pairing
from bnn.train import Recipe, Schedule, run_recipe
from bnn.train import step as steps
from bnn.train.checkpoint import read_checkpoint, write_checkpoint
from bnn.train.loop import STEP

ROOT = Path(__file__).parent.parent.parent
OWN = ["weight", "auto"]  # of the two layers
FAMILIES = [name for name in families() if "sampling" in pairing(name, nn.Linear).options_type.names()]


def mixed_net(family: str = "inducing") -> nn.Sequential:
    """A network with BatchNorm whose two layers have options of their own."""
    net = plain_net()
    layers = zip((net[0], net[3]), OWN, strict=True)
    bnn.bayesianize_(net, {layer: {"inference": family, "sampling": own} for layer, own in layers}, **sizes_of(family))
    return net


def own_options(net: nn.Sequential) -> list[str]:
    return [net[0].options.sampling, net[3].options.sampling]


def watched(net: nn.Sequential) -> dict[str, set[str]]:
    """Notes the option that each forward of the first layer finds: in steps, where gradients flow, and elsewhere."""
    seen: dict[str, set[str]] = {"steps": set(), "elsewhere": set()}

    def note(layer: Any, args: Any) -> None:
        seen["steps" if torch.is_grad_enabled() else "elsewhere"].add(layer.options.sampling)

    net[0].register_forward_pre_hook(note)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("asked", [None, "auto", "weight", "local"])
def test_steps_alone_draw_as_the_run_says(family: str, asked: str | None) -> None:
    """Validation, the BatchNorm refresh and the check of the data use the layers' own option."""
    net = mixed_net(family)
    seen = watched(net)
    run(net, validation=blobs(20, seed=2), sampling=asked)
    assert seen == {"steps": {asked or steps.DEFAULT_SAMPLING}, "elsewhere": {"weight"}}
    assert own_options(net) == OWN


def wide_net() -> nn.Sequential:
    """With BatchNorm, and so wide that a row of outputs is cheaper to draw than the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300), nn.Linear(300, 3))
    bnn.bayesianize_(net, "inducing", init_lamda=0.3, **SIZES)
    return net


def test_a_step_is_that_of_a_loop_whose_layers_have_the_option() -> None:
    ends = {asked: wide_net() for asked in ("weight", "auto", "local")}
    x, y = blobs()
    for asked, net in ends.items():
        expected = wide_net()
        bnn.set_sampling_(expected, asked)
        elbo = bnn.ELBO(expected, len(x), "categorical")
        optimiser = optim.Adam(bnn.parameter_groups(elbo, 1e-2))
        for step, (indices, _) in enumerate(Place(7, 0).parts(len(x), 10)):
            torch.manual_seed(derived(7, STEP, 0, step, 0))
            optimiser.zero_grad()
            elbo(x[indices], y[indices]).loss.backward()
            optimiser.step()
        run(net, (x, y), epochs=1, lr=1e-2, sampling=asked, refresh_batchnorm=False)
        assert same(net, expected), asked
    assert same(ends["weight"], ends["auto"])  # because of BatchNorm
    assert not same(ends["weight"], ends["local"])


# ---- restored, whatever happens --------------------------------------------------------------------------------------


class Failing:
    """Cross-entropy that does something in the second step."""

    def __init__(self, act: Any) -> None:
        self.act, self.steps = act, 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if output.requires_grad:
            self.steps += 1
            if self.steps == 2:
                self.act()
        return F.cross_entropy(output, target, reduction="none")


def _fail() -> None:
    raise OSError("no such luck")


def _ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _ctrl_c_twice() -> None:
    _ctrl_c()
    _ctrl_c()


@pytest.mark.parametrize(
    ("act", "error"), [(_fail, OSError), (_ctrl_c, KeyboardInterrupt), (_ctrl_c_twice, KeyboardInterrupt)]
)
def test_the_layers_own_option_is_restored_after(act: Any, error: type[BaseException], tmp_path: Path) -> None:
    net = mixed_net()
    seen = watched(net)
    with pytest.raises(error):
        run(net, likelihood=Failing(act), sampling="local", out=tmp_path)
    assert seen["steps"] == {"local"}
    assert own_options(net) == OWN


def test_the_layers_own_option_is_restored_after_divergence() -> None:
    net = mixed_net()
    with pytest.raises(bnn.train.DivergenceError):
        run(net, likelihood=lambda output, target: output.sum(1) * math.inf, sampling="local")
    assert own_options(net) == OWN


def test_files_hold_the_layers_own_option(tmp_path: Path) -> None:
    run(mixed_net(), sampling="local", out=tmp_path)
    loaded = plain_net()
    bnn.load_(loaded, tmp_path / "net.safetensors")
    assert own_options(loaded) == OWN


# ---- networks without the option -------------------------------------------------------------------------------------


def other_net(kind: str) -> nn.Module:
    net = plain_net()
    if kind == "fcg":
        bnn.bayesianize_(net, "fcg")
    return bnn.Ensemble([net, plain_net()]) if kind == "ensemble" else net


@pytest.mark.parametrize("kind", ["plain", "fcg", "ensemble"])
def test_networks_without_the_option_train_unless_it_is_asked_for(kind: str, tmp_path: Path) -> None:
    run(other_net(kind))
    with pytest.raises(
        ValueError, match="no layer of this network has the option 'sampling': leave sampling='auto' out"
    ):
        run(other_net(kind), sampling="auto", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_members_of_an_ensemble_have_it() -> None:
    members = [mixed_net(), mixed_net()]
    seen = [watched(net) for net in members]
    run(bnn.Ensemble(members), sampling="local")
    assert [one["steps"] for one in seen] == [{"local"}] * 2
    assert [own_options(net) for net in members] == [OWN] * 2


def test_unknown_values_are_errors() -> None:
    with pytest.raises(ValueError, match=r"unknown sampling 'row'; expected one of \['auto', 'weight', 'local'\]"):
        Schedule(sampling="row")


# ---- going on --------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_the_default_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, begun, net = wide_net(), wide_net(), wide_net()
    seen = [watched(each) for each in (expected, begun, net)][-1]  # hooks change how factors round
    monkeypatch.setattr(steps, "DEFAULT_SAMPLING", "weight")
    run(expected, epochs=2)
    run(begun, epochs=1, out=tmp_path)
    monkeypatch.setattr(steps, "DEFAULT_SAMPLING", "local")
    run(net, epochs=2, out=tmp_path)
    assert seen["steps"] == {"weight"}
    assert same(net, expected)
    with pytest.raises(ValueError, match="checkpoint of another run: sampling: None then, 'local' now"):
        run(wide_net(), epochs=3, sampling="local", out=tmp_path)


def test_checkpoints_from_before_the_option_go_on_with_the_layers_own(tmp_path: Path) -> None:
    run(mixed_net(), epochs=1, out=tmp_path)
    path = str(tmp_path / "checkpoint.safetensors")
    state = read_checkpoint(path)
    del state["run"]["sampling"], state["run"]["schedule"]["sampling"]
    write_checkpoint(state, path)
    shutil.copytree(tmp_path, tmp_path / "other")
    for epochs in (2, 3):  # the second finds a checkpoint of the first
        net = mixed_net()
        seen = watched(net)
        run(net, epochs=epochs, out=tmp_path)
        assert seen["steps"] == {"weight"}
    net = mixed_net()
    seen = watched(net)
    run(net, epochs=2, sampling="local", out=tmp_path / "other")  # unless one is asked for
    assert seen["steps"] == {"local"}


def test_recipes_from_before_the_option_go_on(tmp_path: Path) -> None:
    small = {"name": "digits", "first": 100}, {"name": "fcn", "hidden": [8]}, {"inference": "inducing", **SIZES}
    recipe = Recipe(*small, schedule=Schedule(epochs=1))
    run_recipe(recipe, tmp_path, progress=False, tensorboard=False)
    stored = json.loads((tmp_path / "recipe.json").read_text())
    del stored["schedule"]["sampling"]
    (tmp_path / "recipe.json").write_text(json.dumps(stored))
    outcome = run_recipe(recipe.but(schedule={"epochs": 2}), tmp_path, progress=False, tensorboard=False)
    assert outcome.history is not None
    assert len(outcome.history.epochs) == 2
    with pytest.raises(ValueError, match=r"schedule\.sampling was None, is now 'weight'"):
        run_recipe(recipe.but(schedule={"sampling": "weight"}), tmp_path)


# ---- what is written about it ----------------------------------------------------------------------------------------


def test_every_field_of_the_schedule_is_in_the_docstring_of_fit() -> None:
    assert bnn.fit.__doc__ is not None
    for name, default in Schedule().to_dict().items():
        assert f"{name}=" in bnn.fit.__doc__, name
        if isinstance(default, str):
            assert f'{name}="{default}"' in bnn.fit.__doc__


def test_the_pages_say_what_is_the_default_of_training() -> None:
    for page in ("training.md", "decisions.md"):
        text = (ROOT / "docs" / page).read_text()
        assert f'`sampling="{steps.DEFAULT_SAMPLING}"`' in text, page
