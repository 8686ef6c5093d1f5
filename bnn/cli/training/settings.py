"""`--set section.name=value`: any value of a recipe."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from torch import nn

from bnn._common.text import nearest
from bnn.cli.mistakes import Mistake
from bnn.nn.nets import CNN, FCN, ResNet
from bnn.train.recipe import Recipe
from bnn.train.schedule import Schedule

EXAMPLE = "--set schedule.clip=1.0"
SECTIONS = ("data", "net", "method", "schedule", "pretrain", "global_inducing")  # whose values have names of their own


class Setting(NamedTuple):
    """One value of a recipe: of a section, or (section "") of the recipe itself."""

    section: str
    name: str
    value: Any


KINDS: dict[str, type] = dict.fromkeys(SECTIONS, dict) | {"global_inducing": dict, "kl_weights": list, "ours": list}


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
