"""How many parameters a network takes under every method, without memory for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bnn.bayesianize import bayesianize_
from bnn.cli.networks.architecture import Architecture
from bnn.global_inducing import register_global_inducing_weights_
from bnn.nn.base import layer_types
from bnn.nn.memory import total_memory
from bnn.parameters import parameter_count
from bnn.train.recipe import Recipe

PLAIN = "deterministic"
BYTES = 4  # of a number in float32
IN_TRAINING = 4  # of each parameter: itself, its gradient, Adam's two moments
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True)
class Counted:
    """The size of a network under one method.

    Args:
        method: its name; `label` says what it is.
        parameters: how many; None where it cannot be built.
        plain: those of the plain network, one of them.
        note: why it cannot be built, or that it does not fit in memory.
        net: as counted, weightless; None for what is only calculated.
    """

    method: str
    label: str
    parameters: int | None
    plain: int
    note: str = ""
    net: nn.Module | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        count = self.parameters
        return {
            "method": self.method,
            "label": self.label,
            "parameters": count,
            "ratio": None if count is None else count / self.plain,
            "bytes": None if count is None else BYTES * count,
            "note": self.note,
        }


def count_methods(network: Architecture, rows: int, cols: int, members: int, keep: float) -> list[Counted]:
    """The plain network under every method of the library, in the order of the table."""
    one = network.weightless()
    plain = parameter_count(one)
    found = {PLAIN: Counted(PLAIN, "deterministic", plain, plain, _memory_note(plain), one)}
    for method, (label, options) in conversions(rows, cols, members).items():
        found[method] = _converted(method, label, network, options, plain)
    calculated = [
        ("ensemble-w", f"deep ensemble of {members}", members * plain),
        ("compressed-ensemble", f"compressed ensemble of {members}", _times(members, found["ffg-u"])),
    ]
    for method, label, count in calculated:
        note = found["ffg-u"].note if count is None else _memory_note(count)
        found[method] = Counted(method, label, count, plain, note)
    for method in ("ffg-w", "ffg-u"):
        found[f"{method}-pruned"] = _pruned(found[method], keep)
    order = (PLAIN, "ffg-w", "ffg-w-pruned", "fcg-w", "ensemble-w", "ffg-u", "ffg-u-pruned", "matrix-u", "fcg-u")
    return [found[method] for method in (*order, "ensemble-u", "compressed-ensemble")]


def conversions(rows: int, cols: int, members: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a method is, and the arguments of `bnn.bayesianize_` that make it."""
    inducing = {"inference": "inducing", "inducing_rows": rows, "inducing_cols": cols, "init": "paper"}
    ensemble = inducing | {"q_inducing": "ensemble", "ensemble_size": members}
    return {
        "ffg-w": ("FFG-W", {"inference": "ffg"}),
        "fcg-w": ("FCG-W", {"inference": "fcg"}),
        "ffg-u": ("FFG-U", inducing),
        "matrix-u": ("matrix-U", inducing | {"q_inducing": "matrix"}),
        "fcg-u": ("FCG-U", inducing | {"q_inducing": "full"}),
        "ensemble-u": (f"Ensemble-U of {members}", ensemble),
    }


def count_recipe(recipe: Recipe, keep: float, network: Architecture, net: nn.Module | None = None) -> list[Counted]:
    """The plain network of a recipe, and what the recipe makes of it: `net`, where it is at hand."""
    plain = parameter_count(Architecture(network.net, network.in_shape, network.outputs).weightless())
    start = network.weightless()
    rows = [Counted(PLAIN, "deterministic", plain, plain, net=start if network.members == 1 else None)]
    if network.members > 1:
        several = f"deep ensemble of {network.members}"
        rows.append(Counted("ensemble-w", several, network.members * plain, plain, net=start))
    if not recipe.bayesian:
        return rows
    if net is None:
        net = network.weightless()
        bayesianize_(net, **recipe.method)
        if recipe.global_inducing is not None:
            register_global_inducing_weights_(net, **recipe.global_inducing)
    count = parameter_count(net)
    own = Counted("recipe", recipe.name, count, plain, _memory_note(count), net)
    pruned = _pruned(own, keep)
    return [*rows, own, *([pruned] if pruned.parameters != count else [])]


def by_layer(counted: list[Counted]) -> list[dict[str, Any]]:
    """The parameters of every layer that has weights, by method; then those of everything else."""
    nets = {one.method: one.net for one in counted if one.net is not None}
    modules = {method: dict(net.named_modules()) for method, net in nets.items()}
    plain = next(iter(modules.values()))
    rows: list[dict[str, Any]] = []
    rest = dict.fromkeys(nets, 0)
    for name in dict.fromkeys(name for found in modules.values() for name in found):  # a global module is not in all
        own = {method: _own(found.get(name)) for method, found in modules.items()}
        shown = plain.get(name)
        if type(shown) in layer_types() or (shown is None and any(own.values())):
            rows.append({"layer": name, "weight": _shape(shown), "parameters": own})
        else:
            rest = {method: rest[method] + own[method] for method in nets}
    return [*rows, {"layer": "everything else", "weight": None, "parameters": rest}]


def readable(size: int) -> str:
    """Bytes for people.

    >>> readable(94_083_368)
    '89.7 MiB'
    """
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.1f} {UNITS[unit]}" if unit else f"{size} B"


def _converted(method: str, label: str, network: Architecture, options: Mapping[str, Any], plain: int) -> Counted:
    net = network.weightless()
    try:
        bayesianize_(net, **options)
    except (RuntimeError, OverflowError):  # torch finds sizes that it cannot multiply
        return Counted(method, label, None, plain, "left out: it has more numbers than a tensor can hold")
    count = parameter_count(net)
    return Counted(method, label, count, plain, _memory_note(count), net)


def _pruned(whole: Counted, keep: float) -> Counted:
    """`whole` with the fraction `keep` of what can be pruned."""
    label = f"{whole.label}, pruned to {100 * keep:g} %{' of Z' if whole.method == 'ffg-u' else ''}"
    count = None if whole.net is None else parameter_count(whole.net, keep=keep)
    return Counted(f"{whole.method}-pruned", label, count, whole.plain, "" if count is not None else whole.note)


def _times(members: int, one: Counted) -> int | None:
    return None if one.parameters is None else members * one.parameters


def _memory_note(count: int | None) -> str:
    """That training does not fit in memory, where it does not."""
    available = total_memory(torch.device("cpu"))
    needed = IN_TRAINING * BYTES * (count or 0)
    if available is None or needed <= available:
        return ""
    return f"{readable(needed)} to train, of {readable(available)} in all"


def _own(module: nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters(recurse=False))


def _shape(module: nn.Module | None) -> list[int] | None:
    weight = None if module is None else module._parameters.get("weight")
    return None if weight is None else list(weight.shape)
