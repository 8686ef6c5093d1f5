"""From flags to a recipe and its data, tried out in memory: whatever is wrong is found before anything is written."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bnn import likelihoods
from bnn._common.seeds import own_randomness
from bnn._common.text import nearest
from bnn._conversion.methods import DEFAULT, METHODS, PLAIN, Method, get
from bnn.bayesianize import bayesianize_
from bnn.cli.architecture import named
from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.training import defaults, sources
from bnn.cli.training.flags import Flags
from bnn.cli.training.overrides import (
    Setting,
    applied,
    option_names,
    parsed,
    with_method_flags,
    with_schedule_flags,
)
from bnn.data import names
from bnn.data.batches import training_batches
from bnn.data.dataset import Data
from bnn.data.sources import source_at
from bnn.ensemble import Ensemble
from bnn.evaluation.network import size_of
from bnn.evaluation.pieces import Size
from bnn.files import load_
from bnn.global_inducing import register_global_inducing_weights_
from bnn.likelihoods.registry import AUTO, CHOICE
from bnn.prune import prune_
from bnn.train import defaults as schedules
from bnn.train.build import build_data, build_net
from bnn.train.class_weights import for_data
from bnn.train.execute import why_not_calibrated
from bnn.train.laplace import LaplaceStage
from bnn.train.plain_stage import candidates, check_teacher
from bnn.train.preflight import checked
from bnn.train.presets import presets
from bnn.train.prune_options import prune_options
from bnn.train.recipe import Recipe

EXAMPLE = "bayesianize train --data table.csv --target COLUMN"


@dataclass(frozen=True)
class Described:
    """A run: its recipe, its data, and the folder it goes to by default."""

    recipe: Recipe
    data: Data
    folder: str


def describe(flags: Flags) -> Described:
    """The run that the flags describe, by themselves or on top of a recipe file or a preset."""
    settings = [parsed(text) for text in flags.settings or ()]
    base = _base(flags)
    chosen = None if flags.method is None else get(flags.method)
    if chosen is None and not base:
        chosen = METHODS[DEFAULT]
    values = applied(base | {"data": sources.described(flags, base.get("data"))}, _of(settings, "data"))
    data = _loaded(values["data"], flags.download)
    _check_likelihood(flags.likelihood, data)
    values = applied(values | {"net": _net(flags, base, data, chosen)}, _of(settings, "net"))
    if not base and data.task in CHOICE:
        values["likelihood"] = AUTO if flags.likelihood is None else flags.likelihood
    if chosen is not None:
        values |= _parts(chosen, values, flags, data, alone=not base)
    values.setdefault("method", {"inference": PLAIN})
    values = with_schedule_flags(with_method_flags(values, flags), flags, data)
    title = "-".join([sources.label(values["data"]), str(values["net"]["name"]), "" if chosen is None else chosen.name])
    values.setdefault("name", title)
    rest = [one for one in settings if one.section not in ("data", "net")]
    recipe = Recipe.from_dict(applied(values, rest))
    _check_calibration(flags, recipe, data)
    return Described(recipe, data, _folder(flags, title, recipe.seed))


def _folder(flags: Flags, title: str, seed: int) -> str:
    """runs/<data>-<net>-<method>-seed<seed>; of a file or a preset, runs/<its name>-seed<seed>."""
    if flags.file is not None:
        title = os.path.splitext(os.path.basename(flags.file))[0]
    elif flags.preset is not None:
        title = flags.preset
    return os.path.join("runs", f"{title.replace('/', '-')}-seed{seed}")


def _base(flags: Flags) -> dict[str, Any]:
    """The values of the recipe file or preset; none where flags describe the whole run."""
    if flags.file is not None and flags.preset is not None:
        raise Mistake(f"give a recipe file, {flags.file}, or --preset {flags.preset}, not both")
    if flags.preset is not None:
        known = presets()
        if flags.preset not in known:
            hint = nearest(flags.preset, known)
            raise Mistake(f"unknown preset {flags.preset!r}{hint}; `bayesianize presets` lists all {len(known)}")
        return known[flags.preset].to_dict()
    if flags.file is None:
        if flags.data is None:
            raise Mistake(
                f"say what to train: a recipe file, --preset NAME (`bayesianize presets` lists them), or data, as "
                f"`{EXAMPLE}`"
            )
        return {}
    if not flags.file.endswith((".json", ".toml")):
        raise Mistake(f"{flags.file} is no recipe: expected a .json or .toml file{_meant(flags.file)}")
    return Recipe.from_file(flags.file).to_dict()


def _meant(file: str) -> str:
    """What a word that is no recipe may be."""
    if file in presets():
        return f"; it is a preset: bayesianize train --preset {file}"
    source = source_at(file)
    if source is not None and "target" in source.needs:
        return f"; data go behind --data: bayesianize train --data {file} --target COLUMN"
    if file in names() or os.path.exists(file):
        return f"; data go behind --data: bayesianize train --data {file}"
    return f"; for data: {EXAMPLE}"


def _of(settings: list[Setting], section: str) -> list[Setting]:
    return [one for one in settings if one.section == section]


def _loaded(description: dict[str, Any], download: bool | None) -> Data:
    """The data, with a hint where they could be downloaded."""
    if download:
        if "name" not in description:
            raise Mistake("--download is for named data sets; these data are your own: leave it out")
        description = description | {"download": True}
    try:
        data: Data = build_data(description)
    except FileNotFoundError as error:
        hint = (
            f"\n--download lets `train` fetch {description['name']}" if "name" in description and not download else ""
        )
        raise Mistake(f"{error}{hint}") from error
    return data


def _check_likelihood(likelihood: str | None, data: Data) -> None:
    if likelihood is not None:
        chosen = [AUTO] if data.task in CHOICE else []
        one_of(f"likelihood for {data.task}", likelihood, [*likelihoods.names(data.task), *chosen])


def _check_calibration(flags: Flags, recipe: Recipe, data: Data) -> None:
    """By default it is left out where it cannot be done; who asks for it is told."""
    reason = why_not_calibrated(data, likelihoods.for_task(recipe.likelihood, data.task)) if flags.calibrate else None
    if reason is not None:
        raise Mistake(f"--calibrate: no temperature can be fitted, as {reason}: leave it out")


def _net(flags: Flags, base: dict[str, Any], data: Data, method: Method | None) -> dict[str, Any]:
    """The network of the recipe: that of the file or preset, or by its name, or the one that fits the data."""
    before = base.get("net")
    name = (flags.net or (before or {}).get("name") or defaults.network(data.in_shape)).lower()
    shape = ",".join(map(str, data.in_shape))
    net = named(name, in_shape=shape, classes=data.out_features, hidden=flags.hidden, channels=flags.channels).net
    if before is not None and name == str(before["name"]).lower():
        return before | {option: net[option] for option in flags.given("hidden", "channels")}
    if method is not None and method.hidden is not None and name == "fcn" and flags.hidden is None:
        net["hidden"] = list(method.hidden)
    if name == "cnn" and max(data.in_shape[-2:]) < defaults.TINY and len(data.in_shape) == 3:
        net["maxpool_freq"] = 2
    return net


def _parts(method: Method, values: dict[str, Any], flags: Flags, data: Data, alone: bool) -> dict[str, Any]:
    """What a method says about a recipe; its schedule too, where no file or preset has one."""
    members = method.networks if flags.members is None or method.members > 1 else flags.members
    outputs = _most_outputs(values.get("likelihood") if flags.likelihood is None else flags.likelihood, data)
    with own_randomness(torch.device("cpu")):
        net = build_net(values["net"], data.in_shape, outputs)
    parts: dict[str, Any] = {"members": members, "together": False, "global_inducing": None}
    parts["laplace"] = None if method.laplace is None else dict(method.laplace)
    parts["method"] = defaults.options(method, net, flags.rows, flags.cols, several=members > 1)
    if method.family == PLAIN:
        parts["teacher"] = None
    if not alone:
        schedule = (values.get("schedule") or {}) | ({"samples": method.members} if method.members > 1 else {})
        if "sampling" not in option_names(method.family):
            schedule.pop("sampling", None)  # of the method that this one replaces
        return parts | {"schedule": schedule, "kl_weights": []}
    return parts | _schedules(method, flags, data)


def _most_outputs(likelihood: str | None, data: Data) -> int:
    """Outputs of the network; where validation data choose the likelihood, of the larger one."""
    names = CHOICE.get(data.task, (None,)) if likelihood == AUTO else (likelihood,)
    return data.out_features * max(likelihoods.for_task(name, data.task).outputs_per_target for name in names)


def _schedules(method: Method, flags: Flags, data: Data) -> dict[str, Any]:
    """How a method trains where only flags say anything: plain first, then as a Bayesian network.

    Not plain first where `--weights` are trained already, or where `--ml-epochs` or `--annealing-epochs` ask for the
    paper's way, which begins with maximum likelihood in the same training.
    """
    inputs, validated, real = len(data.train), data.validation is not None, data.task in CHOICE
    if method.family == PLAIN:
        return {"schedule": schedules.plain_schedule(inputs, validated, flags.epochs, real)}
    first = flags.pretrain
    if first is None and (flags.weights is not None or flags.given("warmup", "anneal")):
        first = 0
    trained = first != 0 or flags.weights is not None
    parts: dict[str, Any] = {"schedule": schedules.schedule(inputs, method, trained, validated, real)}
    if first is None and flags.epochs is not None:
        first = schedules.AFTER * flags.epochs
    if first == 0:
        return parts
    return parts | {
        "pretrain": schedules.plain_schedule(inputs, validated, first, real),
        "spread": schedules.SPREAD if real else None,
        "activations": real or method.laplace is not None,
        "retry": real and validated,
    }


# ---- the rehearsal ---------------------------------------------------------------------------------------------------


def rehearse(recipe: Recipe, data: Data) -> Size:
    """Builds the network of a recipe, converts it and shows it a few inputs; returns how large it is.

    Raises:
        Mistake, ValueError, TypeError: what training would stumble over.
    """
    schedules = [one for one in (recipe.pretrain, recipe.schedule) if one is not None]
    if data.validation is None and (recipe.kl_weights or any(one.patience is not None for one in schedules)):
        raise Mistake("--patience and kl_weights choose by validation data: set some aside with --validation 0.1")
    likelihood = for_data(candidates(recipe, data)[-1], data, recipe.class_weights)
    outputs = data.out_features * likelihood.outputs_per_target
    with own_randomness(torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again when it is done
        net = _converted(recipe, data, outputs)
        check_teacher(recipe, likelihood)
        checked(training_batches(data, recipe.schedule.batch_size), net, likelihood, data, given=True)
        if recipe.prune is not None:
            prune_(net, prune_options(recipe.prune, recipe.schedule.epochs).keep)
        if recipe.laplace is not None:
            LaplaceStage(recipe.laplace, data, likelihood).check(net)
    return size_of(net)


def _converted(recipe: Recipe, data: Data, outputs: int) -> nn.Module:
    net = build_net(recipe.net, data.in_shape, outputs)
    net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    if recipe.weights is not None:
        load_(net, recipe.weights)
    if recipe.bayesian:
        bayesianize_(net, **_from_anywhere(recipe.method))
    if recipe.global_inducing is not None:
        register_global_inducing_weights_(net, **recipe.global_inducing)
    return net


def _from_anywhere(method: dict[str, Any]) -> dict[str, Any]:
    """The method without projecting weights, which takes minutes for large layers and changes no size."""
    named = method["inference"]
    entries = [named] if isinstance(named, str) else named.values()
    found = [one.get("inference") if isinstance(one, dict) else one for one in entries]
    return method | ({"init": "paper"} if any("init" in option_names(str(one)) for one in found) else {})
