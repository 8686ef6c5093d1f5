"""Which inputs go into which part: by a seed alone, class by class, and every class keeps one for training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bnn._common.errors import ArgumentError
from bnn._common.seeds import derived
from bnn._common.text import listed

GUARANTEE, LEAST = 0.1, 50  # the share that is set aside for a guarantee, and how many inputs at least
EXAMPLE = 20  # of a number to give instead
FEWEST = {0.9: 9, 0.95: 19}  # inputs that a guarantee at such a level takes
ASIDE = 20  # what a derived seed is for


@dataclass(frozen=True)
class Split:
    """Sorted indices of the parts; those of a part that was not asked for are empty."""

    train: Tensor
    validation: Tensor
    test: Tensor
    guarantee: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


def split(
    count: int,
    test: float,
    validation: float,
    seed: int,
    labels: Tensor | None = None,
    classes: Sequence[str] = (),
    name: str = "the data",
    guarantee: int = 0,
) -> Split:
    """Sets fractions `test` and `validation` of `count` inputs aside at random, the rest is for training.

    With labels (N,), every class is split in the same proportions and keeps at least one input for training; one that
    has no other is named in a warning. Before all that, `guarantee` inputs are drawn from all of them alike, whatever
    their class, as `bnn.conformal` needs it; the fractions are then of the others.

    >>> split(10, test=0.2, validation=0.1, seed=0).train.shape
    torch.Size([7])
    """
    if guarantee:
        return _with_guarantee(count, test, validation, seed, labels, classes, name, guarantee)
    if test + validation >= 1:
        message = f"test={test:g} and validation={validation:g} leave nothing to train on"
        raise ArgumentError(message, "test", "validation")
    order = torch.randperm(count, generator=torch.Generator(device="cpu").manual_seed(seed), device="cpu")
    kept = order[:1]  # at least one is for training
    if labels is not None:
        order = order[labels[order].argsort(stable=True)]  # class by class, random within
        kept = order[_starts(labels[order])]
    free = order[~torch.isin(order, kept)]
    sizes = [max(1, round(part * count)) if part else 0 for part in (test, validation)]
    if sum(sizes) > len(free):
        hint = f" with {len(kept)} classes (each keeps one for training)" if labels is not None else ""
        fewer = "; for real targets say task='regression'" if labels is not None else ""
        raise ArgumentError(
            f"{name}: {count} inputs{hint} are too few to set {sum(sizes)} aside; "
            f"give a smaller test= and validation= (None: no such part){fewer}",
            *(("test", "validation") if labels is None else ("test", "validation", "task")),
        )
    if labels is not None and any(sizes):
        _warn_alone(labels, classes, name)
    aside = _every(free, sizes[0])
    free = free[~torch.isin(free, aside)]
    validated = _every(free, sizes[1])
    rest = torch.ones(count, dtype=torch.bool)
    rest[aside] = rest[validated] = False
    return Split(rest.nonzero()[:, 0], validated.sort().values, aside.sort().values)


def _with_guarantee(
    count: int,
    test: float,
    validation: float,
    seed: int,
    labels: Tensor | None,
    classes: Sequence[str],
    name: str,
    guarantee: int,
) -> Split:
    """A plain random sample is set aside first; a share of each class would not be exchangeable with new inputs."""
    order = torch.randperm(count, generator=torch.Generator(device="cpu").manual_seed(derived(seed, ASIDE)))
    aside, others = order[:guarantee].sort().values, order[guarantee:].sort().values
    if labels is not None:
        warn_gone(labels, others, classes, name)
    cut = split(len(others), test, validation, seed, None if labels is None else labels[others], classes, name)
    return Split(others[cut.train], others[cut.validation], others[cut.test], aside)


def inputs_aside(value: Any, count: int, name: str = "the data") -> int:
    """How many of `count` inputs `guarantee=value` sets aside: a share, but at least 50, or so many; None or 0: none.

    >>> inputs_aside(0.1, 200), inputs_aside(0.1, 2000), inputs_aside(30, 80), inputs_aside(None, 80)
    (50, 200, 30, 0)
    """
    if value is None or (value == 0 and not isinstance(value, bool)):
        return 0
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not whole and not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(
            f"guarantee must be a share of the inputs, as 0.1 (at least {LEAST} are set aside), or their number, as "
            f"100; got {value!r}"
        )
    aside = value if whole else max(LEAST, round(value * count))
    if 2 * aside > count:
        more = "give a share of at most 0.5" if not whole and value > 0.5 else f"it takes {2 * aside} inputs"
        raise ArgumentError(
            f"{name}: a guarantee would set {aside} of {count} inputs aside, more than half, and too little would be "
            f"left to learn from: {more}, or {_fewer(count // 2)}",
            "guarantee",
        )
    return int(aside)


def _fewer(most: int) -> str:
    """What to do instead, where `most` inputs can be set aside at most.

    >>> _fewer(12), _fewer(8)
    ('give their number yourself, as guarantee=12 (9 are the fewest for a level of 0.9)', 'leave the guarantee out')
    """
    if most < FEWEST[0.9]:
        return "leave the guarantee out"
    more = f", {FEWEST[0.95]} for 0.95" if most >= FEWEST[0.95] else ""
    fewest = f"{FEWEST[0.9]} are the fewest for a level of 0.9{more}"
    return f"give their number yourself, as guarantee={min(EXAMPLE, most)} ({fewest})"


def _every(order: Tensor, count: int) -> Tensor:
    """`count` of `order`, evenly spaced over it."""
    picked = ((torch.arange(count, dtype=torch.double) + 0.5) * len(order) / max(count, 1)).long()
    return order[picked]


def _starts(ordered: Tensor) -> Tensor:
    """Where a new label begins in sorted labels (N,), as a mask."""
    starts = torch.ones(len(ordered), dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    return starts


def warn_gone(labels: Tensor, others: Tensor, classes: Sequence[str], name: str) -> None:
    """Warns of classes of which nothing is left among the others, as a guarantee takes inputs whatever their class.

    Args:
        labels: int64 (N,), of all inputs; what is below 0 is no class.
        others: indices of those that are left.
        classes: names; empty where they have none.
    """
    left = set(labels[others].tolist())
    gone = [one for one in labels.unique().tolist() if one >= 0 and one not in left]
    if gone:
        shown = listed([repr(classes[one] if classes else one) for one in gone])
        warnings.warn(
            f"{name}: classes of which all inputs were set aside for the guarantee, so that training never sees them: "
            f"{shown}; get more of them, or set fewer inputs aside",
            stacklevel=4,
        )


def _warn_alone(labels: Tensor, classes: Sequence[str], name: str) -> None:
    counts = labels.bincount(minlength=len(classes))
    alone = [repr(classes[label]) for label in (counts == 1).nonzero()[:, 0].tolist()]
    if alone:
        warnings.warn(
            f"{name}: classes with a single input, which is used for training and never tested: {listed(alone)}",
            stacklevel=4,
        )
