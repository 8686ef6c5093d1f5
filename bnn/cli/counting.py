"""How many parameters a network takes under every method, without memory for one of them, as a table or JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bnn._common.text import nearest
from bnn._conversion.methods import METHODS, PLAIN, Method
from bnn.bayesianize import bayesianize_
from bnn.cli.architecture import Architecture, named
from bnn.cli.console import print_table
from bnn.cli.mistakes import Mistake
from bnn.cli.options import NETS
from bnn.global_inducing import register_global_inducing_weights_
from bnn.nn.base import layer_types
from bnn.nn.memory import total_memory
from bnn.nn.pruning import own_count
from bnn.parameters import parameter_count
from bnn.train.presets import presets
from bnn.train.recipe import Recipe
from bnn.train.runs.opening import open_run

ROWS, MEMBERS = 64, 5  # the paper's
PRUNED = ("ffg-w", "ffg-u")  # methods that are counted pruned, too
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


@dataclass(frozen=True)
class Result:
    """What is counted, under which methods, with which sizes."""

    network: Architecture
    methods: list[Counted]
    sizes: dict[str, Any]

    def to_dict(self, layers: bool) -> dict[str, Any]:
        """As JSON."""
        about = {"network": self.network.to_dict(), "plain": self.methods[0].plain, "sizes": self.sizes}
        rows = {"methods": [one.to_dict() for one in self.methods]}
        return about | rows | ({"layers": by_layer(self.methods)} if layers else {})

    def print(self, layers: bool) -> None:
        """As tables."""
        M = f"; U is {self.sizes['rows']} x {self.sizes['cols']}" if "rows" in self.sizes else ""
        rows = [_cells(one.to_dict()) for one in self.methods]
        print_table(["method", "parameters", "of plain", "float32"], rows, title=f"{self.network.title()}{M}")
        for one in self.methods:
            if one.note:
                print(f" {one.label}: {one.note}")
        if layers:
            shown = {one.method: one.label for one in self.methods if one.net is not None}
            table = by_layer(self.methods)
            cells = [[row["layer"], _weight(row), *(f"{row['parameters'][m]:,}" for m in shown)] for row in table]
            print_table(["layer", "weight", *shown.values()], cells, left=2)


def counted(net: str, shape: dict[str, Any], sizes: dict[str, int | None], keep: float) -> Result:
    """The counts of what a word names: a network, of this shape; or a run's folder, a recipe's file, a preset."""
    if net.lower() not in NETS:
        return _of_recipe(net, shape | sizes, keep)
    rows = sizes["rows"] or ROWS
    M = {"rows": rows, "cols": sizes["cols"] or rows, "members": sizes["members"] or MEMBERS}
    network = named(net, **shape)
    return Result(network, count_methods(network, **M, keep=keep), M | {"keep": keep})


def _of_recipe(name: str, flags: dict[str, Any], keep: float) -> Result:
    """The counts of a finished run, a recipe in a file, or a preset."""
    given = [f"--{flag.replace('_', '-')}" for flag, value in flags.items() if value is not None]
    known = presets()
    there = os.path.exists(name) or name.endswith((".json", ".toml"))
    if not there and name not in known:
        raise Mistake(
            f"unknown network {name!r}{nearest(name, [*NETS, *known])}; expected one of {', '.join(NETS)}, the folder "
            "of a run, a recipe (.json or .toml), or a preset (`bayesianize presets` lists them)"
        )
    if given:
        raise Mistake(f"{name} is a whole recipe and sets {', '.join(given)} itself: leave out, or name a network")
    if os.path.isdir(name):
        run = open_run(name)
        assert run.recipe is not None  # open_run needs it to build the network
        network = Architecture(run.recipe.net, run.in_shape, run.out_features, run.recipe.members)
        return Result(network, count_recipe(run.recipe, keep, network, run.net), {"keep": keep})
    recipe = Recipe.from_file(name) if there else known[name]
    network = Architecture.of_recipe(recipe)
    return Result(network, count_recipe(recipe, keep, network), {"keep": keep})


def count_methods(network: Architecture, rows: int, cols: int, members: int, keep: float) -> list[Counted]:
    """The plain network under every method of the library, in the order of the registry."""
    one = network.weightless()
    plain = parameter_count(one)
    found = []
    for method in METHODS.values():
        counted = _counted(method, network, plain, {"rows": rows, "cols": cols, "members": members})
        found += [counted, *([_pruned(counted, keep)] if method.name in PRUNED else [])]
    return found


def _counted(method: Method, network: Architecture, plain: int, sizes: dict[str, int]) -> Counted:
    """One method; what is several networks is calculated from one of them."""
    members = sizes["members"]
    label = f"{method.title} of {members}" if method.networks > 1 or method.members > 1 else method.title
    net = network.weightless()
    try:
        if method.family != PLAIN:
            bayesianize_(net, **_options(method, **sizes))
    except (RuntimeError, OverflowError):  # torch finds sizes that it cannot multiply
        return Counted(method.name, label, None, plain, "left out: it has more numbers than a tensor can hold")
    count = parameter_count(net) * (members if method.networks > 1 else 1)
    return Counted(method.name, label, count, plain, _memory_note(count), net if method.networks == 1 else None)


def _options(method: Method, rows: int, cols: int, members: int) -> dict[str, Any]:
    """The arguments of `bnn.bayesianize_` that make a method with these sizes, without looking at weights."""
    found = {"inference": method.family, **method.options}
    if method.member_option is not None:
        found[method.member_option] = members
    return found | ({} if method.size is None else {**method.sizes(rows, cols), "init": "paper"})


def count_recipe(recipe: Recipe, keep: float, network: Architecture, net: nn.Module | None = None) -> list[Counted]:
    """The plain network of a recipe, and what the recipe makes of it: `net`, where it is at hand."""
    plain = parameter_count(Architecture(network.net, network.in_shape, network.outputs).weightless())
    start = network.weightless()
    rows = [Counted(PLAIN, METHODS[PLAIN].title, plain, plain, net=start if network.members == 1 else None)]
    if network.members > 1:
        several = METHODS["ensemble-w"]
        label = f"{several.title} of {network.members}"
        rows.append(Counted(several.name, label, network.members * plain, plain, net=start))
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


def _pruned(whole: Counted, keep: float) -> Counted:
    """`whole` with the fraction `keep` of what can be pruned."""
    label = f"{whole.label}, pruned to {100 * keep:g} %{' of Z' if whole.method == 'ffg-u' else ''}"
    count = None if whole.net is None else parameter_count(whole.net, keep=keep)
    return Counted(f"{whole.method}-pruned", label, count, whole.plain, "" if count is not None else whole.note)


def _memory_note(count: int | None) -> str:
    """That training does not fit in memory, where it does not."""
    available = total_memory(torch.device("cpu"))
    needed = IN_TRAINING * BYTES * (count or 0)
    if available is None or needed <= available:
        return ""
    return f"{readable(needed)} to train, of {readable(available)} in all"


def _own(module: nn.Module | None) -> int:
    return 0 if module is None else own_count(module)


def _shape(module: nn.Module | None) -> list[int] | None:
    weight = None if module is None else module._parameters.get("weight")
    return None if weight is None else list(weight.shape)


def _cells(row: dict[str, Any]) -> list[str]:
    if row["parameters"] is None:
        return [row["label"], "-", "-", "-"]
    share = f"{100 * row['ratio']:,.1f} %" if row["ratio"] < 100 else f"{row['ratio']:,.0f} x"
    return [row["label"], f"{row['parameters']:,}", share, readable(row["bytes"])]


def _weight(row: dict[str, Any]) -> str:
    return "" if row["weight"] is None else " x ".join(map(str, row["weight"]))
