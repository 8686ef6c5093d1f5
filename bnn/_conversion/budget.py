"""Ranks from a budget of parameters: those within it that lose least in all layers together.

Layer l with the rank M takes c_l(M) parameters and keeps the fraction e_l(M) of the variance of its outputs, or
of the energy of its weights where no inputs are at hand. What a network passes on is a product over its layers, so the
sizes maximise sum_l log e_l(M_l) under sum_l c_l(M_l) <= budget. Gains fall and costs rise with M, so that taking the
step with the most gain per parameter first is optimal up to the last steps. Weights tell less than outputs: by them
alone a layer may lose what matters most, so that each first gets `FAIR` of an equal share.
A family with several sizes (M_out and M_in of an inducing matrix) has them all equal: the mean of W has the rank of
the smallest, more of another is no use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn._common.text import listed
from bnn._conversion.methods import family_of
from bnn.functional.projection import singular_values
from bnn.nn.base import PAIRINGS, Weights, families, layer_types
from bnn.nn.limited_rank import HALF, LimitedRank

FAIR = 0.9  # of the same fraction for all layers; by the weights alone, more or less of it lost accuracy
FLOOR = 1e-3  # of the energy kept, so that its logarithm is finite


class Layer(NamedTuple):
    """A layer that a budget covers."""

    name: str
    target: type[LimitedRank]
    weights: Weights
    options: Any  # with sizes, if they are given
    last: bool = False  # of its network: it keeps full rank
    entry: int = 0  # which entry of an inference dict gave its budget; 0: all layers share one
    kept: Sequence[float] | None = None  # of the outputs' variance at rank 1, 2, ..., where inputs are at hand to tell

    @property
    def plain(self) -> int:
        """Its parameters before."""
        weight, bias = self.weights
        return weight.numel() + (0 if bias is None else bias.numel())


class Curve(NamedTuple):
    """What the ranks M = 1, 2, ... of a layer cost and bring; those only that do not exceed its plain parameters."""

    plain: int
    costs: list[int]
    kept: list[float]  # fraction of the energy
    seen: bool = False  # that of the outputs


class Sizes(NamedTuple):
    """The outcome: options with sizes, or None for a layer that stays dense; and what has to be said."""

    options: list[Any | None]
    left: list[str]  # why layers stay dense
    warnings: list[str]


def settle(layers: Sequence[Layer]) -> Sizes:
    """Sizes for all layers of one conversion.

    Layers share a budget that is given for all of them, sizes that are given count towards it; an entry of an inference
    dict may have one of its own. Layers with neither sizes nor a budget have half of their parameters together.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.options.budget is not None or is_open(layer):
            groups.setdefault((layer.entry, layer.options.budget is None), []).append(i)
    found: list[Any | None] = [layer.options for layer in layers]
    left: list[str] = []
    warnings: list[str] = []
    for places in groups.values():
        budget = layers[places[0]].options.budget
        if not any(is_open(layers[i]) for i in places):
            names = size_names([layers[i] for i in places], " or ")
            warnings.append(f"budget={budget!r} has no effect: {names} are given, and they win")
            continue
        options, dense, warned = within_budget([layers[i] for i in places], budget)
        for i, one in zip(places, options, strict=True):
            found[i] = one
        left, warnings = left + dense, warnings + warned
    return Sizes(found, left, warnings)


def within_budget(layers: Sequence[Layer], budget: float | int | None) -> Sizes:
    """Sizes for all layers together.

    Args:
        budget: a fraction of their parameters, or a number of them; None: half of them, and where that is not possible
            the last layer in addition to half of the others, with a warning.

    Raises:
        ValueError: not even the smallest sizes are within the budget; names the least possible.
    """
    plain = sum(layer.plain for layer in layers)
    curves = {i: curve_of(layer) for i, layer in enumerate(layers) if is_open(layer) and not layer.last}
    fixed = sum(_fixed_cost(layer, curves.get(i)) for i, layer in enumerate(layers))
    paying = {i: curve for i, curve in curves.items() if curve.costs}
    if not paying and all(map(is_open, layers)):
        return _last_alone(layers, budget)
    given = HALF if budget is None else budget
    limit = limit_of(given, plain)
    least = fixed + sum(curve.costs[0] for curve in paying.values())
    warnings = []
    if least > limit:
        if budget is not None:
            raise ValueError(_impossible(layers, given, limit, least, plain))
        limit = max(least, fixed + sum(curve.plain for curve in paying.values()) // 2)  # half of what can be halved
        warnings.append(_above_half(layers, limit, plain))
    ranks = dict(zip(paying, share(list(paying.values()), limit - fixed), strict=True))
    left = [_does_not_pay(layers[i]) for i in curves if i not in paying]
    options: list[Any | None] = []
    for i, layer in enumerate(layers):
        if not is_open(layer):
            options.append(layer.options)
        elif layer.last:
            options.append(of_rank(layer, full_rank(layer)))
        else:
            options.append(of_rank(layer, ranks[i]) if i in ranks else None)
    return Sizes(options, left, warnings)


def limit_of(budget: float | int, plain: int) -> int:
    """How many parameters a budget is."""
    return budget if isinstance(budget, int) else math.floor(budget * plain)


def share(curves: Sequence[Curve], budget: int) -> list[int]:
    """M of every layer: as much as possible of sum log(kept) for at most `budget` parameters together.

    Steps with the most gain per parameter come first, and ties go to the layer that has least of its plain parameters;
    before them those with which a layer whose outputs are not known gets `FAIR` of an equal share. A step that does not
    fit is left out for good. In the end no M could grow by one within the budget.
    """
    ranks = [1] * len(curves)
    fair = FAIR * budget / max(1, sum(curve.plain for curve in curves))
    rest = budget - sum(curve.costs[0] for curve in curves)
    steps = [_step(curve, i, 1, fair) for i, curve in enumerate(curves) if len(curve.costs) > 1]
    heapq.heapify(steps)
    while steps:
        *_, i, cost = heapq.heappop(steps)
        if cost > rest:
            continue
        rest, ranks[i] = rest - cost, ranks[i] + 1
        if ranks[i] < len(curves[i].costs):
            heapq.heappush(steps, _step(curves[i], i, ranks[i], fair))
    return ranks


def _step(curve: Curve, i: int, m: int, fair: float) -> tuple[bool, float, float, int, int]:
    """The step of layer i from M = m to m + 1, as a heap sorts it: the best first."""
    cost, share = curve.costs[m] - curve.costs[m - 1], curve.costs[m - 1] / curve.plain
    if not curve.seen and curve.costs[m] <= fair * curve.plain:
        return False, share, share, i, cost
    before, after = (max(kept, FLOOR) for kept in curve.kept[m - 1 : m + 1])
    return True, -math.log(after / before) / cost, share, i, cost


# ---- one layer -------------------------------------------------------------------------------------------------------


def is_open(layer: Layer) -> bool:
    """Whether the sizes of a layer are left to the budget."""
    return layer.target.given_sizes(layer.options) is None


def of_rank(layer: Layer, m: int) -> Any:
    """The options of a layer with the rank m."""
    return layer.target.of_rank(layer.options, m)


def size_names(layers: Sequence[Layer], joint: str) -> str:
    """The options of these layers that are sizes, as text."""
    return joint.join(dict.fromkeys(name for layer in layers for name in layer.target.size_names))


def full_rank(layer: Layer) -> int:
    """The rank that the weights of a layer can have at most."""
    return min(layer.target.arranged(layer.weights, layer.options).shape)


def curve_of(layer: Layer) -> Curve:
    """Costs and energies of a layer, from its weights; from its shape alone where the start does not keep them."""
    W = layer.target.arranged(layer.weights, layer.options)
    costs: list[int] = []
    for m in range(1, min(W.shape) + 1):
        cost = layer.target.cost_of_rank(W.shape, layer.options, m)
        if cost > layer.plain or (m == 1 and cost == layer.plain):
            break
        costs.append(cost)
    if not costs:
        return Curve(layer.plain, [], [])
    if layer.kept is not None:
        return Curve(layer.plain, costs, list(layer.kept[: len(costs)]), seen=True)
    if layer.options.init == "paper" or W.is_meta:
        return Curve(layer.plain, costs, energy_by_shape(W.shape)[: len(costs)])
    if not bool(torch.isfinite(W).all()):
        said = "its weights hold NaN or inf, so that no posterior can start from them: repair them first"
        raise ValueError(f"layer {layer.name or 'the network'!r}: {said}")
    return Curve(layer.plain, costs, energy_by_rank(W)[: len(costs)])


def energy_by_rank(W: Tensor) -> list[float]:
    """The fraction of |W|^2 in the best approximation of rank 1, 2, ..., min(W.shape)."""
    energy = singular_values(W).square().cumsum(0)
    total = float(energy[-1])
    return [1.0] * len(energy) if total == 0 else (energy / total).tolist()


def energy_by_shape(shape: Sequence[int]) -> list[float]:
    """The same as far as it is known without weights: as of a flat spectrum, M / min(shape)."""
    k = min(shape)
    return [m / k for m in range(1, k + 1)]


def left_to_budget(target: type[nn.Module], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a layer, with `kernel="auto"` where a budget chooses its sizes and nobody says otherwise."""
    if not issubclass(target, LimitedRank):
        return given
    sizes = any(given.get(name) for name in target.size_names)
    return given if sizes or given.get("init") == "paper" else {"kernel": "auto"} | given


def refuse_budget(choices: Sequence[tuple[str, Mapping[str, Any]]], defaults: Mapping[str, Any]) -> None:
    """Raises TypeError for a budget on families without sizes."""
    without = {name for name, _ in choices if not _has_sizes(name)}
    wrong = sorted({name for name, own in choices if own.get("budget") is not None and name in without})
    if defaults.get("budget") is not None and without == {name for name, _ in choices}:
        wrong = sorted(without)
    if wrong:
        raise TypeError(
            f"a budget chooses the sizes of inducing matrices, or ranks, and {', '.join(map(repr, wrong))} has none: "
            f"expected {', '.join(map(repr, filter(_has_sizes, families())))} or a method that uses them; leave budget "
            "out for others"
        )


def _has_sizes(inference: str) -> bool:
    """Whether a family or method has a rank."""
    own = [kind for (family, _), kind in PAIRINGS.known.items() if family == family_of(inference)]
    return any(issubclass(kind, LimitedRank) for kind in own)


def last_layers(networks: Iterable[nn.Module]) -> set[nn.Module]:
    """The last layer of every network, in the order of `modules()`."""
    found = [[m for m in one.modules() if isinstance(m, tuple(layer_types()))] for one in networks]
    return {layers[-1] for layers in found if layers}


# ---- what has to be said ---------------------------------------------------------------------------------------------


def _fixed_cost(layer: Layer, curve: Curve | None) -> int:
    """What a layer takes, whatever the budget; 0 for one whose size is open."""
    if curve is not None:
        return 0 if curve.costs else layer.plain
    given = layer.target.given_sizes(layer.options)
    if given is not None:
        return layer.target.parameters_for(layer.weights, layer.options, *given)
    W = layer.target.arranged(layer.weights, layer.options)
    return layer.target.cost_of_rank(W.shape, layer.options, min(W.shape))


def _last_alone(layers: Sequence[Layer], budget: float | int | None) -> Sizes:
    """Where no layer but the last could have fewer parameters: the last alone is converted."""
    chosen = [i for i, layer in enumerate(layers) if layer.last] or [len(layers) - 1]
    options = [of_rank(layer, full_rank(layer)) if i in chosen else None for i, layer in enumerate(layers)]
    left = [_does_not_pay(layer) for i, layer in enumerate(layers) if i not in chosen]
    cost, plain = sum(_fixed_cost(layers[i], None) for i in chosen), sum(layers[i].plain for i in chosen)
    names = listed(repr(layers[i].name or "the network") for i in chosen)
    said = (
        "no layer is large enough to have fewer parameters after a conversion, so that the last one alone is "
        f"converted, {names}, at full rank: {cost:,} parameters instead of {plain:,}"
    )
    total = sum(layer.plain for layer in layers)
    if budget is not None and cost + total - plain > limit_of(budget, total):
        sizes = size_names([layers[i] for i in chosen], " and ")
        said += f", which is above budget={budget!r}; {sizes} would make it smaller"
    return Sizes(list(options), left, [said])


def _does_not_pay(layer: Layer) -> str:
    cost = layer.target.cost_of_rank(layer.target.arranged(layer.weights, layer.options).shape, layer.options, 1)
    kind = layer.target.plain.__name__
    smallest = f"even {layer.target.smallest} takes {cost:,} parameters, and it has {layer.plain:,}"
    return f"{layer.name or 'the network'} ({kind}): {smallest}"


def _impossible(layers: Sequence[Layer], budget: float | int, limit: int, least: int, plain: int) -> str:
    part = f"{limit:,} of {plain:,} parameters"
    said = f"budget={budget!r} is {part}, but these layers take at least {least:,}"
    fraction = math.ceil(1000 * least / plain) / 1000
    said += f": budget={least}" + (f" or {fraction:g}" if fraction <= 1 else "") + " is the least possible"
    full = [layer for layer in layers if layer.last and is_open(layer)]
    if full:
        names = listed(repr(layer.name or "the network") for layer in full)
        cost = sum(_fixed_cost(layer, None) for layer in full)
        said += f". The last layer, {names}, keeps full rank, {cost:,} of them; {size_names(full, ' and ')} of its "
        said += "own in an inference dict would make it smaller"
    return said


def _above_half(layers: Sequence[Layer], limit: int, plain: int) -> str:
    full = listed(repr(layer.name or "the network") for layer in layers if layer.last and is_open(layer))
    last = f"the last layer, {full}, keeps full rank" if full else "they are small"
    return (
        f"half of the parameters is not enough for these layers ({last}): {limit:,} instead of {plain:,}. Give a "
        "budget or sizes to choose otherwise"
    )
