"""Flags that change a recipe: its method, its schedule."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from bnn.cli.mistakes import Mistake
from bnn.cli.networks.architecture import whole_numbers
from bnn.cli.training import defaults
from bnn.cli.training.flags import Flags, option
from bnn.data.dataset import Data
from bnn.nn.base import families, pairing
from bnn.nn.families.q.choice import q_class
from bnn.train.recipe import PLAIN

DIRECT = ("epochs", "lr", "batch_size", "samples", "kl_weight", "patience")  # flags that are fields of the schedule
BAYESIAN = ("kl_weight", "ml_epochs", "annealing_epochs", "samples", "pretrain_epochs")  # nothing to a plain network


def is_plain(method: dict[str, Any]) -> bool:
    """Whether a recipe's method leaves the network as it is."""
    return str(method.get("inference")).lower() == PLAIN


def with_method_flags(values: dict[str, Any], flags: Flags) -> dict[str, Any]:
    """The recipe with other inducing sizes, caps and members."""
    method = dict(values["method"])
    asked = {"inducing_rows": flags.rows, "inducing_cols": flags.cols, "max_lamda": flags.max_lamda}
    typed = {"inducing_rows": "rows", "inducing_cols": "cols", "max_lamda": "max_lamda"}
    for name, value in asked.items():
        if value is not None:
            method = with_option(method, name, value, typed[name])
    if (
        flags.max_lamda is not None
        and flags.max_lamda > 0
        and method.get("init_lamda") == values["method"].get("max_lamda")
    ):
        method["init_lamda"] = flags.max_lamda  # what starts at its cap still does
    if flags.max_sd is not None:
        known = "max_sd" if any(family.startswith("ffg") for family in _families(method)) else "max_sd_u"
        q = str(method.get("q_inducing", "diagonal"))
        if known == "max_sd_u" and not q_class(q).takes_cap:
            raise Mistake(f"--max-sd caps the standard deviations of q(U), and q_inducing={q!r} has no such cap")
        method = with_option(method, known, flags.max_sd, "max_sd")
    return _with_members(values | {"method": method}, flags.members)


def _with_members(values: dict[str, Any], members: int | None) -> dict[str, Any]:
    """Another size of Ensemble-U, which draws all its members in a step; or another number of networks."""
    if members is None:
        return values
    entries = [values["method"], *_entries(values["method"])]
    if not any(isinstance(one, dict) and one.get("q_inducing") == "ensemble" for one in entries):
        return values | {"members": members}
    schedule = dict(values.get("schedule") or {})
    if schedule.get("samples", 1) > 1:
        schedule["samples"] = members
    method = with_option(values["method"], "ensemble_size", members, "members")
    return values | {"method": method, "schedule": schedule}


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
    return [str(one).lower() for one in found if one is not None and str(one).lower() != PLAIN]


def option_names(family: str) -> list[str]:
    """The options of a family."""
    return pairing(family, nn.Linear).options_type.names() if family.lower() in families() else []


def with_schedule_flags(values: dict[str, Any], flags: Flags, data: Data) -> dict[str, Any]:
    """The recipe with other schedules, seed, likelihood and weights to start from."""
    if is_plain(values["method"]):
        for name in flags.given(*BAYESIAN):
            raise Mistake(f"{option(name)} is for Bayesian methods, this one is {PLAIN}: leave it out")
    schedule = dict(values.get("schedule") or {}) | flags.given(*DIRECT)
    for name, value in (("warmup", flags.ml_epochs), ("anneal", flags.annealing_epochs)):
        if value is not None:
            schedule[name] = value
    if flags.milestones is not None:
        schedule |= {"milestones": whole_numbers("--milestones", flags.milestones, "60,120"), "cosine": False}
    changed = values | {"schedule": schedule} | flags.given("seed", "likelihood")
    if flags.kl_weight is not None:
        changed["kl_weights"] = []
    if flags.pretrain_epochs is not None:
        before = values.get("pretrain") or defaults.plain_schedule(len(data.train), data.validation is not None)
        changed["pretrain"] = before | {"epochs": flags.pretrain_epochs} if flags.pretrain_epochs else None
    if flags.weights is not None:
        if not os.path.isfile(flags.weights):
            raise Mistake(f"--weights {flags.weights}: there is no such file; expected one that bnn.save wrote")
        changed |= {"weights": flags.weights} | ({} if flags.pretrain_epochs else {"pretrain": None})
    _check_phases(schedule, flags)
    return changed


def _check_phases(schedule: dict[str, Any], flags: Flags) -> None:
    """A mistake if the KL would never count fully, though a flag says when it should."""
    asked = flags.given("ml_epochs", "annealing_epochs")
    first = schedule.get("warmup", 0) + schedule.get("anneal", 0)
    epochs = schedule.get("epochs", 10)
    if asked and first >= epochs:
        raise Mistake(
            f"{first:g} epochs of maximum likelihood and annealing leave none of {epochs} for the full objective: "
            "give more --epochs, or fewer --ml-epochs and --annealing-epochs"
        )
