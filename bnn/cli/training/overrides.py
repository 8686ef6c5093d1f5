"""What changes a recipe: flags for its method and its schedule, and `--set section.name=value` for any value."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from torch import nn

from bnn._common.text import nearest
from bnn._conversion.methods import MEMBER_OPTIONS, PLAIN, family_of, find
from bnn.cli.mistakes import Mistake
from bnn.cli.training import defaults
from bnn.cli.training.flags import Flags, flags, option
from bnn.data.dataset import Data
from bnn.likelihoods.registry import CHOICE
from bnn.nn.base import families, pairing
from bnn.nn.families.q.choice import q_class
from bnn.nn.nets import CNN, FCN, ResNet
from bnn.train.recipe import Recipe
from bnn.train.schedule import Schedule

SIZES = {"rows": "inducing_rows", "cols": "inducing_cols", "max_lamda": "max_lamda"}  # flags of inducing methods
RANK = "rank"  # what `--rows` is for a family that has a rank
HANDLED = ("data", "net", "method", "pretrain", "weights", "members")  # fields of a recipe whose flags are not them
EXAMPLE = "--set schedule.clip=1.0"
SECTIONS = (
    "data",
    "net",
    "method",
    "schedule",
    "pretrain",
    "global_inducing",
    "teacher",
)  # whose values have names of their own
KINDS: dict[str, type] = dict.fromkeys(SECTIONS, dict) | {"kl_weights": list, "ours": list}


def is_plain(method: dict[str, Any]) -> bool:
    """Whether a recipe's method leaves the network as it is."""
    return str(method.get("inference")).lower() == PLAIN


def with_method_flags(values: dict[str, Any], asked: Flags) -> dict[str, Any]:
    """The recipe with other inducing sizes, caps and members."""
    method = dict(values["method"])
    for name, value in asked.given(*SIZES).items():
        ranks = name == "rows" and any(RANK in option_names(family) for family in _families(method))
        method = with_option(method, RANK if ranks else SIZES[name], value, name)
    before = values["method"]
    if (asked.max_lamda or 0) > 0 and option_of(before, "init_lamda") == option_of(before, "max_lamda"):
        method["init_lamda"] = asked.max_lamda  # what starts at its cap still does
    if asked.max_sd is not None:
        known = "max_sd" if any("max_sd" in option_names(family) for family in _families(method)) else "max_sd_u"
        q = str(option_of(method, "q_inducing") or "diagonal")
        if known == "max_sd_u" and not q_class(q).takes_cap:
            raise Mistake(f"--max-sd caps the standard deviations of q(U), and q_inducing={q!r} has no such cap")
        method = with_option(method, known, asked.max_sd, "max_sd")
    return _with_members(values | {"method": method}, asked.members)


def _with_members(values: dict[str, Any], members: int | None) -> dict[str, Any]:
    """Another number of members in one network, all drawn in a step; or another number of networks."""
    if members is None:
        return values
    entries = [one for one in [values["method"], *_entries(values["method"])] if isinstance(one, dict)]
    names = [name for name in map(_member_option, entries) if name is not None]
    if not names:
        return values | {"members": members}
    schedule = dict(values.get("schedule") or {})
    if schedule.get("samples", 1) > 1:
        schedule["samples"] = members
    method = values["method"]
    for name in dict.fromkeys(names):
        method = with_option(method, name, members, "members")
    return values | {"method": method, "schedule": schedule}


def _member_option(entry: dict[str, Any]) -> str | None:
    """The option that says how many members there are in one network; None where there are none."""
    if option_of(entry, "q_inducing") == "ensemble":
        return "ensemble_size"
    known = option_names(str(entry.get("inference")))
    return None if "q_inducing" in known else next((name for name in MEMBER_OPTIONS if name in known), None)


def with_option(method: dict[str, Any], name: str, value: Any, flag: str) -> dict[str, Any]:
    """A recipe's method with this option wherever its families know it; a mistake if none does."""
    inference = method.get("inference")
    knowing = [family for family in _families(method) if name in option_names(family)]
    if not knowing:
        fitting = [family for family in families() if name in option_names(family)]
        kinds = sorted(set(_families(method))) or [PLAIN]
        raise Mistake(f"{option(flag)} is for methods of {' or '.join(fitting)}; this one is {', '.join(kinds)}")
    if not isinstance(inference, dict):
        return method | {name: value}
    changed = {}
    for key, entry in inference.items():
        entry = {"inference": entry} if isinstance(entry, str) else entry
        knows = isinstance(entry, dict) and name in option_names(str(entry.get("inference")))
        changed[key] = entry | {name: value} if knows and isinstance(entry, dict) else entry
    return method | {"inference": changed}


def _entries(method: dict[str, Any]) -> list[Any]:
    inference = method.get("inference")
    return list(inference.values()) if isinstance(inference, dict) else []


def _families(method: dict[str, Any]) -> list[str]:
    """The families that a recipe's method names."""
    named = _entries(method) or [method]
    found = [one.get("inference") if isinstance(one, dict) else one for one in named]
    return [family_of(str(one)) for one in found if one is not None and str(one).lower() != PLAIN]


def option_names(inference: str) -> list[str]:
    """The options of a family or a method."""
    family = family_of(inference)
    return pairing(family, nn.Linear).options_type.names() if family in families() else []


def option_of(entry: dict[str, Any], name: str) -> Any:
    """An option of a recipe's method, or of a layer in it: as written, or by the method that it names."""
    inference = str(entry.get("inference"))
    found = None if inference.lower() in families() else find(inference)
    return entry.get(name, None if found is None else found.options.get(name))


def with_schedule_flags(values: dict[str, Any], asked: Flags, data: Data) -> dict[str, Any]:
    """The recipe with other schedules, seed, likelihood and weights to start from."""
    if is_plain(values["method"]):
        for name in asked.given(*(one.name for one in flags().values() if one.bayesian)):
            raise Mistake(f"{option(name)} is for Bayesian methods, this one is {PLAIN}: leave it out")
    schedule = dict(values.get("schedule") or {}) | asked.values(*Schedule.names())
    if asked.milestones is not None and asked.cosine is None:
        schedule["cosine"] = False
    changed = (
        values | {"schedule": schedule} | asked.values(*(one.name for one in fields(Recipe) if one.name not in HANDLED))
    )
    if asked.kl_weight is not None and asked.kl_weights is None:
        changed["kl_weights"] = []
    if asked.pretrain is not None:
        before = values.get("pretrain") or defaults.plain_schedule(
            len(data.train), data.validation is not None, real=data.task in CHOICE
        )
        changed["pretrain"] = before | {"epochs": asked.pretrain} if asked.pretrain else None
    if asked.weights is not None:
        if not os.path.isfile(asked.weights):
            raise Mistake(f"--weights {asked.weights}: there is no such file; expected one that bnn.save wrote")
        changed |= {"weights": asked.weights} | ({} if asked.pretrain else {"pretrain": None})
    _check_phases(schedule, asked)
    return changed


def _check_phases(schedule: dict[str, Any], asked: Flags) -> None:
    """A mistake if the KL would never count fully, though a flag says when it should."""
    first = schedule.get("warmup", 0) + schedule.get("anneal", 0)
    epochs = schedule.get("epochs", 10)
    if asked.given("warmup", "anneal") and first >= epochs:
        raise Mistake(
            f"{first:g} epochs of maximum likelihood and annealing leave none of {epochs} for the full objective: "
            "give more --epochs, or fewer --ml-epochs and --annealing-epochs"
        )


# ---- --set -----------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One value of a recipe: of a section, or (section "") of the recipe itself."""

    section: str
    name: str
    value: Any


def parsed(text: str) -> Setting:
    """What `--set` says; the value is JSON, and anything else is text.

    >>> parsed("schedule.clip=1.0"), parsed("schedule.optimiser=sgd").value
    (Setting(section='schedule', name='clip', value=1.0), 'sgd')
    """
    place, equals, typed = text.partition("=")
    section, dot, name = place.strip().partition(".")
    if not equals or not section or (dot and not name):
        raise Mistake(f"--set takes name=value, as {EXAMPLE}; got {text!r}")
    try:
        value = json.loads(typed)
    except ValueError:
        value = typed.strip()
    known = [one.name for one in fields(Recipe)]
    if section not in known:
        raise Mistake(f"--set {text}: a recipe has no {section!r}{nearest(section, known)}; it has {', '.join(known)}")
    if dot and section not in SECTIONS:
        raise Mistake(f"--set {text}: {section!r} is one value, it has no {name!r}; write --set {section}=...")
    return Setting(section, name, value) if dot else Setting("", section, value)


def applied(values: dict[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """The recipe `values` with other settings; unknown names are mistakes that suggest the nearest."""
    changed = dict(values)
    for section, name, value in settings:
        if not section:
            kind = KINDS.get(name)
            if kind is not None and not isinstance(value, kind):
                example = f"--set {name}.NAME=VALUE" if kind is dict else f"--set {name}=[...]"
                raise Mistake(f"--set {name}={value}: that is no single value; write {example}")
            changed[name] = value
            continue
        before = changed.get(section)
        if not isinstance(before, dict):
            more = "; --pretrain-epochs adds it" if section == "pretrain" else ""
            raise Mistake(f"--set {section}.{name}: this run has no {section}{more}")
        check_name(section, name, before)
        changed[section] = before | {name: value}
    return changed


def check_name(section: str, name: str, before: dict[str, Any]) -> None:
    """A mistake for a name that a section surely does not have; data and methods check their own."""
    known: list[str] = []
    if section in ("schedule", "pretrain"):
        known = Schedule.names()
    if section == "net":
        known = net_options(str(before.get("name")))
    if known and name not in known:
        raise Mistake(
            f"--set {section}.{name}: no such value{nearest(name, known)}; expected one of {', '.join(known)}"
        )


def net_options(name: str) -> list[str]:
    """The options of a network in a recipe."""
    if name == "fcn":
        return ["name", "hidden", *_arguments(FCN, "sizes"), *_arguments(nn.Linear, "in_features", "out_features")]
    if name == "cnn":
        own = _arguments(CNN, "channels", "lin_sizes")
        more = [one for one in _arguments(nn.Conv2d, "in_channels", "out_channels") if one not in own]
        return ["name", "channels", "hidden", *own, *more]
    return ["name", *_arguments(ResNet, "depth", "out_features")]


def _arguments(function: Any, *but: str) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in but]
