"""What became of a network: its layers with their sizes, parameters, energy and cost, as a table and as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from bnn._engine.inputs import check_network
from bnn.nn.base import BayesianLayer, layer_types
from bnn.nn.global_inducing import GlobalInducing
from bnn.nn.limited_rank import LimitedRank
from bnn.nn.pruning import own_count, pruned_entries

PLAIN = "-"  # the family of a layer that is no posterior


@dataclass(frozen=True)
class LayerSummary:
    """One layer. Multiplies are those of one draw for one row: an input vector, or one position of a convolution."""

    name: str
    type: str  # of the plain layer, as "Conv2d"
    family: str  # "-" for a plain layer
    sizes: tuple[int, ...] | None  # M_out, M_in of an inducing matrix, or a rank
    before: int  # parameters
    after: int
    energy_kept: float | None  # of the weights or outputs it was converted from; None where that is not known
    multiplies_before: int
    multiplies: int
    kept: float | None = None  # of the parameters that can be pruned; None where none was


@dataclass(frozen=True)
class Totals:
    """Parameters of several layers, or of the whole network, before and after the conversion."""

    before: int
    after: int

    @property
    def fraction(self) -> float:
        """after / before."""
        return self.after / self.before if self.before else 1.0


@dataclass(frozen=True)
class Summary:
    """The layers of a network; `str` is a table, `to_dict` is JSON."""

    layers: list[LayerSummary]
    totals: dict[str, Totals]  # "Bayesian layers", and "network" with everything else

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        for name, total in self.totals.items():
            found["totals"][name]["fraction"] = total.fraction
        return found

    def __str__(self) -> str:
        heads = ["layer", "type", "family", "M", "before", "after", "", "energy", "multiplies/row", "kept"]
        rows = [_cells(layer) for layer in self.layers]
        for name, total in self.totals.items():
            numbers = [f"{total.before:,}", f"{total.after:,}", f"{total.fraction:.1%}"]
            rows.append([name, "", "", "", *numbers, "", "", ""])
        if all(layer.kept is None for layer in self.layers):  # nothing was pruned
            heads, rows = heads[:-1], [row[:-1] for row in rows]
        return _table(heads, rows, rule=len(self.layers))

    __repr__ = __str__


def summary(network: nn.Module) -> Summary:
    """What became of every layer of `network` that can be converted: print it, or read `.layers` and `.totals`.

    Energy is the fraction of |W|^2 that a conversion kept (of the outputs' energy, where it saw inputs); networks from
    files do not know it. Multiplies are those of one draw per row, an input vector or one position of a convolution.
    Tied layers count once. Of pruned layers (`bnn.prune_`) only what is kept counts, and `kept` says how much of what
    can be pruned that is; zeros are multiplied as any other number.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=10, inducing_cols=10)
    >>> table = bnn.summary(net)
    >>> table.layers[0].sizes, table.layers[0].before, table.layers[0].after
    ((10, 10), 8320, 2151)
    >>> round(table.totals["network"].fraction, 3)
    0.391
    """
    check_network(network)
    covered = tuple(layer_types())
    found = {name: module for name, module in network.named_modules() if isinstance(module, covered)}
    layers = [_layer(name, module) for name, module in found.items()]
    bayesian = [layer for layer in layers if layer.family != PLAIN]
    shared = sum(own_count(module) for module in network.modules() if isinstance(module, GlobalInducing))
    own = Totals(sum(one.before for one in bayesian), sum(one.after for one in bayesian) + shared)
    everything = sum(one.numel() for one in network.parameters() if not is_lazy(one))
    everything -= sum(pruned_entries(module) for module in network.modules() if isinstance(module, BayesianLayer))
    whole = Totals(everything - own.after + own.before, everything)
    return Summary(layers, {"Bayesian layers": own, "network": whole})


def _layer(name: str, module: nn.Module) -> LayerSummary:
    shown = name or "the network"
    if not isinstance(module, BayesianLayer):
        weight, count = module._parameters.get("weight"), own_count(module)
        dense = 0 if weight is None or is_lazy(weight) else weight.numel()
        return LayerSummary(shown, type(module).__name__, PLAIN, None, count, count, None, dense, dense)
    dense = math.prod(module.weight_shape)
    before = dense + module.has_bias * module.d_out
    sizes, cost = None, dense
    if isinstance(module, LimitedRank):
        sizes = module.sizes()
        cost = min(dense, _factored(module))  # a layer that is too small to gain runs dense
    kind, energy, after = module.plain.__name__, module.energy_kept, own_count(module)
    return LayerSummary(shown, kind, module.family, sizes, before, after, energy, dense, cost, _kept(module))


def _kept(layer: BayesianLayer) -> float | None:
    """The fraction of what can be pruned that is left; None where all is."""
    whole = sum(getattr(layer, name).numel() for name in layer.prunable)
    gone = pruned_entries(layer)
    return 1 - gone / whole if gone else None


def _factored(layer: LimitedRank) -> int:
    """Multiplies per row of the two factors, d_in M + M d_out; of a split kernel at the positions of its first one."""
    if getattr(layer, "groups", 1) > 1:
        return math.prod(layer.weight_shape)
    rows, columns = layer.matrix_shape()
    steps = layer.stride[-1] if layer.split else 1  # type: ignore[index]
    return layer.sizes()[-1] * (int(steps) * (columns - layer.has_bias) + rows)


def _cells(layer: LayerSummary) -> list[str]:
    sizes = "" if layer.sizes is None else " x ".join(map(str, layer.sizes))
    kept = "" if layer.energy_kept is None else f"{layer.energy_kept:.1%}"
    share = f"{layer.after / layer.before:.1%}" if layer.before else ""
    counts = [f"{layer.before:,}", f"{layer.after:,}", share]
    left = "" if layer.kept is None else f"{layer.kept:.1%}"
    return [layer.name, layer.type, layer.family, sizes, *counts, kept, f"{layer.multiplies:,}", left]


def _table(heads: list[str], rows: list[list[str]], rule: int) -> str:
    """Columns of text: the first three to the left, numbers to the right; a rule before row number `rule`."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]
    line = "-" * max(map(len, lines))
    return "\n".join([lines[0], line, *lines[1 : rule + 1], line, *lines[rule + 1 :]])
