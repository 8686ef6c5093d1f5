"""How often intervals, or sets of classes, hold the truth, and how large they are: the model's own, and guaranteed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnn.conformal import Guarantee, rows_needed
from bnn.data.dataset import TargetScale
from bnn.evaluation.pieces import BeforeAfter, Coverage, Guaranteed
from bnn.evaluation.predictor import Array, Outputs
from bnn.metrics.bootstrap import Interval
from bnn.metrics.mixture import mixture_cdf
from bnn.metrics.regression import normal_cdf, per_row

LEVELS = (0.5, 0.8, 0.9)  # that tables show
TARGETS = 50  # that are looked at one by one, at most
CURVE = tuple(round(0.05 * i, 2) for i in range(1, 20))  # of a picture
Z = 1.959964  # of 95 % intervals


def wilson(share: float, n: int, z: float = Z) -> Interval:
    """Wilson's interval of a share of n independent inputs: it has a width where all, or none, are inside.

    >>> print(wilson(0.83, 111))
    0.83 [0.7494, 0.8885]
    """
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    return Interval(share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def own_coverage(outputs: Outputs, targets: Array, levels: Sequence[float] = CURVE) -> tuple[Coverage, ...]:
    """Of the central intervals of real predictions, at every level, from u = F(y), F the predicted distribution.

    y is in the central interval of level L where (1 - L) / 2 <= u <= (1 + L) / 2. Targets that are NaN do not count.
    """
    return _central(_probability_below(outputs, targets), levels)


def coverage_of_each(
    outputs: Outputs, targets: Array, names: Sequence[str] = (), levels: Sequence[float] = LEVELS
) -> dict[str, tuple[Coverage, ...]]:
    """`own_coverage` of each of several real targets (N, D), over the inputs where it is known; {} of a single one.

    `names` are those of the targets; without names they have numbers.
    """
    if targets.ndim != 2 or targets.shape[1] < 2:
        return {}
    columns = _probability_below(outputs, targets).T  # (D, N)
    called = names or [str(d) for d in range(len(columns))]
    return {name: _central(u, levels) for name, u in zip(called, columns, strict=True)}


def _central(u: Array, levels: Sequence[float]) -> tuple[Coverage, ...]:
    """Of the central intervals at every level, from u = F(y) (N, ...), NaN where y is missing."""
    return tuple(_coverage(level, np.abs(u - 0.5) <= level / 2, None, ~np.isnan(u)) for level in levels)


def guaranteed(
    guarantee: Guarantee,
    outputs: Outputs,
    targets: Array,
    target: TargetScale | None,
    on: str = "test",
    classes: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Guaranteed:
    """Coverage and size of the model's own intervals, or sets, before, and of those of a guarantee after.

    Args:
        guarantee: of predictions made as `outputs` were.
        outputs, targets: of inputs that neither training nor the guarantee has seen; targets in their own units, or
            class labels.
        target: how real targets were scaled.
        on: what these inputs are called.
        classes: their names; empty where they have none.
        names: of several real targets; without names they have numbers.
    """
    levels = [level for level in LEVELS if rows_needed(level) <= guarantee.rows]
    by_target: dict[str, BeforeAfter] = {}
    if outputs.scaled is None:
        before = tuple(_sets(outputs, targets, level) for level in LEVELS)
        after = tuple(_of_sets(level, guarantee.sets(outputs.mean, level), targets) for level in levels)
    else:
        own = {level: outputs.interval(level) for level in LEVELS}
        held = {level: own_units(guarantee.intervals(as_predicted(outputs), level), target) for level in levels}
        before, after = _inside(own, targets), _inside(held, targets)
        by_target = {
            name: BeforeAfter(_inside(own, targets, d), _inside(held, targets, d))
            for d, name in enumerate(target_names(targets, names))
        }
    return Guaranteed(
        rows=guarantee.rows,
        method=guarantee.method,
        on=on,
        before=before,
        after=after,
        statement=guarantee.statement(max(levels)) if levels else "",
        inputs=sum(map(len, guarantee.scores)) if guarantee.by_class else max(map(len, guarantee.scores)),
        rows_of_each=guarantee.rows_of_each(classes if guarantee.by_class else names),
        classes={} if outputs.scaled is not None else _of_each_class(guarantee, outputs, targets, levels, classes),
        by_target=by_target,
    )


def target_names(values: Array, names: Sequence[str] = ()) -> list[str]:
    """What several real targets (N, D) are called, by name or else by number; empty for one, or more than `TARGETS`.

    >>> target_names(np.zeros((5, 2))), target_names(np.zeros((5, 1)))
    (['0', '1'], [])
    """
    several = values.ndim == 2 and 2 <= values.shape[1] <= TARGETS
    return list(names or map(str, range(values.shape[1]))) if several else []


def as_predicted(outputs: Outputs) -> Any:
    """Class probabilities, or the mean and total sd of one Gaussian, as `bnn.conformal` takes them."""
    if outputs.scaled is None:
        return outputs.mean
    mean, sd = outputs.scaled
    return mean[None], sd[None]


def own_units(ends: tuple[Array, Array], target: TargetScale | None) -> tuple[Array, Array]:
    """Ends of intervals (N, ...) in the target's own units, whose order is that of the network's."""
    if target is None:
        return ends
    lower, upper = (np.asarray(target.own_units(end).numpy()) for end in ends)
    return lower, upper


def _probability_below(outputs: Outputs, targets: Array) -> Array:
    """F(y) of every target (N, ...), F the mixture of the draws, or the Gaussian with its moments."""
    if outputs.components is None:
        return np.asarray(normal_cdf((targets - outputs.mean) / np.sqrt(outputs.total)))
    targets = np.log(targets) if outputs.scale == "log" else targets
    return mixture_cdf(*outputs.components, targets, outputs.df)


def _inside(ends: Mapping[float, tuple[Array, Array]], targets: Array, only: int | None = None) -> tuple[Coverage, ...]:
    """Of intervals at every level; `only` one of several targets."""

    def of(values: Array) -> Array:
        return values if only is None else values[:, only : only + 1]

    y, found = of(targets), []
    for level, both in ends.items():
        low, high = map(of, both)
        found.append(_coverage(level, (low <= y) & (y <= high), high - low, ~np.isnan(y)))
    return tuple(found)


def _sets(outputs: Outputs, labels: Array, level: float) -> Coverage:
    """The most probable classes that together have a probability of at least `level`."""
    order = np.argsort(-outputs.mean, axis=1, kind="stable")
    ordered = np.take_along_axis(outputs.mean.astype(np.float64), order, axis=1)
    inside = np.empty(ordered.shape, dtype=bool)
    np.put_along_axis(inside, order, ordered.cumsum(axis=1) - ordered < level, axis=1)
    return _of_sets(level, inside, labels)


def _of_each_class(
    guarantee: Guarantee, outputs: Outputs, labels: Array, levels: Sequence[float], names: Sequence[str]
) -> dict[str, tuple[Coverage, ...]]:
    """What the sets of a guarantee hold of each class, by its name, at every level."""
    labels = labels.astype(np.int64)
    sets = [guarantee.sets(outputs.mean, level) for level in levels]
    of = {name: labels == c for c, name in enumerate(names or map(str, range(outputs.mean.shape[1])))}
    return {
        name: tuple(_of_sets(level, inside[own], labels[own]) for level, inside in zip(levels, sets, strict=True))
        for name, own in of.items()
    }


def _of_sets(level: float, inside: Array, labels: Array) -> Coverage:
    return _coverage(level, inside[np.arange(len(labels)), labels], inside.sum(axis=1), np.ones(len(labels), bool))


def _coverage(level: float, inside: Array, sizes: Array | None, known: Array) -> Coverage:
    """Means over the known targets of every input, then over the inputs that have any, as those of `bnn.metrics`.

    The interval counts inputs, for the targets of one may hang together.
    """
    inputs = int(known.reshape(len(known), math.prod(known.shape[1:])).any(axis=1).sum())
    if not inputs:
        return Coverage(level, Interval(math.nan, math.nan, math.nan), math.nan, 0)
    size = math.nan if sizes is None else _mean(sizes, known)
    return Coverage(level, wilson(_mean(inside, known), inputs), size, inputs)


def _mean(values: Array, known: Array) -> float:
    return float(np.nanmean(per_row(np.where(known, values, np.nan))))
