"""Data of your own in arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn._common.checks import check_bool, fraction_of
from bnn._common.errors import ArgumentError
from bnn._common.text import listed, nearest
from bnn.data.array_preparation import (
    Array,
    ArrayImages,
    ScaledInputs,
    array_names,
    array_of,
    channels_first,
    image_layout,
    refuse_bad,
)
from bnn.data.dataset import TASKS, Data, Part, TargetScale, Task
from bnn.data.images import ImageScaling
from bnn.data.sources import TEST, VALIDATION
from bnn.data.split import inputs_aside, split
from bnn.data.target_scale import above_zero, check_known, scale_hint

FEW = 20  # different whole numbers that are classes however few rows there are


def arrays(
    x: Any,
    y: Any = None,
    *,
    task: Task | None = None,
    test: float | tuple[Any, Any] | None = None,
    validation: float | tuple[Any, Any] | None = None,
    guarantee: float | int | None = None,
    classes: Sequence[str] | None = None,
    scale: bool = True,
    layout: str | None = None,
    seed: int = 0,
    name: str = "arrays",
    positive: bool = False,
    targets: Sequence[str] = (),
) -> Data:
    """Arrays as data; inputs and real targets are scaled by mean and sd of the training part.

    Args:
        x: inputs (N, ...): an array, a tensor, or the path of a .npy or .npz file (its array "x" or "x_train", or its
            only one). uint8 of 3 or 4 dimensions are images and stay bytes; the rest are features, scaled by column
            (N, D), or by channel (N, D, ...).
        y: labels (N,), text or whole numbers, or real targets (N,) or (N, D), where NaN is a missing one of several;
            likewise a path. None: the arrays "y" or
            "y_train" of the .npz file that x names, with the file's own test and validation parts ("x_test", ...).
        task: "classification" or "regression"; None: real numbers are targets, the rest are labels.
        test, validation: a fraction to set aside (every class keeps its share), a pair (x, y), or None.
        guarantee: the share of x to set aside for a guarantee (`bnn.conformal`), as 0.1, but at least 50; or their
            number. They are drawn first, and nothing else sees them. None or 0: none.
        classes: names of the labels 0, 1, ...; or, where y is text, all classes in the order of their labels. None:
            those of y, sorted.
        scale: False leaves inputs and real targets as they are (images: pixels from 0 to 1).
        layout: of images: "NCHW", "NHWC" or "NHW"; None finds out.
        seed: of the split, which depends on nothing else.
        name: of the data.
        positive: real targets are above 0, and trained on as (log y - mean) / sd: no mean or interval is below 0.
        targets: names of the real targets, for answers and evaluations.

    >>> data = arrays(np.eye(4), ["cat", "dog", "cat", "dog"])
    >>> data.task, data.classes, data.train.y.tolist()
    ('classification', ('cat', 'dog'), [0, 1, 0, 1])
    """
    pairs, fractions = _given(x, y, {"test": test, "validation": validation})
    xs, ys = pairs["train"]
    target = find_array_target(ys, task, classes)
    check_bool("positive", positive)
    if target.task == "classification" and (positive or targets):
        raise ArgumentError(f"{'positive' if positive else 'targets'} is for real targets; y holds classes", "task")
    given = _targets({part: pair[1] for part, pair in pairs.items()}, target)
    if positive:
        for part, values in given.items():
            above_zero(values.numpy(), lambda row: f"row {row}", lambda d: f"column {d}", _called(part))
    labels = given["train"] if target.task == "classification" else None
    aside = inputs_aside(guarantee, len(xs), name)
    cut = split(len(xs), fractions["test"], fractions["validation"], seed, labels, target.classes, name, aside)
    inputs, numbers = {part: pair[0] for part, pair in pairs.items()}, dict(given)
    for part in ("train", "test", "validation", "guarantee"):
        index = getattr(cut, part)
        if len(index):
            inputs[part], numbers[part] = xs[index.numpy()], given["train"][index]
    preparation, stored = _inputs(inputs, scale, layout)
    y, real, hint = _scaled(numbers, target.task, scale, positive)
    prepare = preparation.scaling if isinstance(preparation, ArrayImages) else None
    parts = {part: Part(stored[part], y[part], prepare) for part in stored}
    return Data(
        name,
        target.task,
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        target.classes,
        real,
        preparation,
        guarantee=parts.get("guarantee"),
        targets=tuple(map(str, targets)),
        hint=hint,
    )


def completed(description: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """What the command line adds: the shares of test and validation data, where the file has no such parts."""
    inside = array_names(description["arrays"])
    shares = {"validation": VALIDATION} if "x_validation" not in inside else {}
    shares |= {"test": TEST} if "x_test" not in inside else {}
    return {**shares, **description}


def _given(x: Any, y: Any, others: dict[str, Any]) -> tuple[dict[str, tuple[Array, Array]], dict[str, float]]:
    """{part: (x, y)} of the parts that are given, and {part: fraction} of those to set aside."""
    inside = array_names(x) if y is None else []
    pairs, fractions = {"train": _pair((x, x if y is None else y), "train")}, {}
    for part, value in others.items():
        if value is None and f"x_{part}" in inside:
            pairs[part] = _pair((x, x), part)
        elif isinstance(value, tuple | list):
            pairs[part] = _pair(value, part)
        fractions[part] = 0.0 if part in pairs else fraction_of(value, f"{part}, if no pair (x, y),")
    return pairs, fractions


def _pair(value: Sequence[Any], part: str) -> tuple[Array, Array]:
    """Inputs and targets as arrays of one length, from an .npz file by their names."""
    if len(value) != 2:
        raise ValueError(f"{part} must be a fraction, a pair (x, y) or None, got {len(value)} things")
    suffixes = ("", "_train") if part == "train" else (f"_{part}", "")  # of the arrays in an .npz file
    xs, ys = (array_of(value, [name + end for end in suffixes]) for name, value in zip("xy", value, strict=True))
    if xs.ndim == 0 or ys.ndim == 0 or len(xs) == 0:
        raise ValueError(f"x and y of {part} need at least one input, got the shapes {xs.shape} and {ys.shape}")
    if len(xs) != len(ys):
        raise ValueError(f"x and y of {part} must be equally long, got {len(xs)} inputs and {len(ys)} targets")
    if xs.ndim == 1:
        raise ValueError(f"x must have the shape (N, D) or more dimensions, got {xs.shape}; x[:, None] is one column")
    return xs, ys


def _inputs(
    xs: dict[str, Array], scale: bool, layout: str | None
) -> tuple[ArrayImages | ScaledInputs, dict[str, Tensor]]:
    """What prepares inputs, and the inputs of every part as they are stored."""
    train = xs["train"]
    for part, x in xs.items():
        if x.shape[1:] != train.shape[1:]:
            raise ValueError(f"inputs of {part} have the shape {x.shape[1:]}, those of train {train.shape[1:]}")
        refuse_bad(x, "x" if part == "train" else f"x of {part}")
    if layout is None and not (train.dtype == np.uint8 and train.ndim in (3, 4)):
        features = ScaledInputs.learned(train) if scale else ScaledInputs.none(train.shape[1:])
        return features, {part: features(x) for part, x in xs.items()}
    found = image_layout(train, layout)
    images = {part: channels_first(x, found) for part, x in xs.items()}
    channels = images["train"].shape[1]
    scaling = ImageScaling.learned(images["train"]) if scale else ImageScaling((0.0,) * channels, (1.0,) * channels)
    return ArrayImages(scaling, found, tuple(images["train"].shape[1:])), images


def _targets(ys: dict[str, Array], target: ArrayTarget) -> dict[str, Tensor]:
    """The targets of every part: labels, or real ones in their own units."""
    if target.task == "classification":
        return {part: target.labels(y, _called(part)) for part, y in ys.items()}
    numbers = {part: target.numbers(y, _called(part)) for part, y in ys.items()}
    widths = {part: y.shape[1] for part, y in numbers.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(f"targets must have the same number of columns in every part, got {widths}")
    return numbers


def _called(part: str) -> str:
    return "y" if part == "train" else f"y of {part}"


def _scaled(
    ys: dict[str, Tensor], task: Task, scale: bool, positive: bool
) -> tuple[dict[str, Tensor], TargetScale | None, str | None]:
    """Targets as they are trained on, how real ones are scaled, and what may be done better."""
    if task == "classification":
        return ys, None, None
    hint = None if positive else scale_hint(ys["train"].numpy())
    if not scale and not positive:
        return {part: y.float() for part, y in ys.items()}, None, hint
    width = ys["train"].shape[1]
    real = learned_scale(ys["train"], positive) if scale else TargetScale((0.0,) * width, (1.0,) * width, positive)
    return {part: real.scaled(y).float() for part, y in ys.items()}, real, hint


@dataclass(frozen=True)
class ArrayTarget:
    """How targets are read.

    Args:
        values: of y, sorted, for label 0, 1, ...; empty for regression.
        classes: their names.
    """

    task: Task
    values: tuple[str | int, ...] = ()
    classes: tuple[str, ...] = ()

    def labels(self, y: Array, what: str = "y") -> Tensor:
        """Labels int64 (N,)."""
        y = _flat(y, what)
        positions = {value: index for index, value in enumerate(self.values)}
        names = _values(y, what)
        for row, value in enumerate(names):
            if value not in positions:
                raise ValueError(
                    f"{what}[{row}] is {value!r}, which is none of the classes "
                    f"{listed(map(repr, self.values), 10)}{nearest(value, self.values)}"
                )
        return torch.tensor([positions[value] for value in names])

    def numbers(self, y: Array, what: str = "y") -> Tensor:
        """Real targets (N, D), float64; of several some may be NaN, which are missing."""
        if y.ndim not in (1, 2):
            raise ValueError(f"{what} must have the shape (N,) or (N, D), got {y.shape}")
        if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind == "f":
            refuse_bad(np.where(np.isnan(y), 0.0, y), what)
            gone = np.isnan(y).all(axis=1)
            if gone.any():
                raise ValueError(
                    f"{what}[{int(gone.argmax())}] is NaN in all {y.shape[1]} columns, as in {gone.sum()} of {len(y)} "
                    "rows: leave out such rows, without any target"
                )
        else:
            refuse_bad(y, what)
        return torch.from_numpy(y.astype(np.float64)).reshape(len(y), -1)


def find_array_target(y: Array, task: Task | None, classes: Sequence[str] | None) -> ArrayTarget:
    """The task of targets: text and whole numbers are classes where nothing else is said, other numbers are real.

    Args:
        classes: names; of labels 0, 1, ... or, where y holds text, of all classes in their order.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"unknown task {task!r}; expected one of {TASKS}, or None")
    real = y.dtype.kind == "f"
    if task == "regression" or (task is None and real and classes is None):
        return ArrayTarget("regression")
    found = sorted(set(_values(_flat(y, "y"), "y")), key=lambda one: (isinstance(one, str), one))
    if task is None and classes is None and not isinstance(found[0], str) and len(found) > max(FEW, len(y) // 2):
        raise ArgumentError(
            f"y holds {len(found)} different whole numbers in {len(y)} rows: say task='regression', "
            "or task='classification'",
            "task",
        )
    if classes is None:
        names: tuple[str, ...] = tuple(map(str, found))
        return ArrayTarget("classification", tuple(found), names)
    names = tuple(map(str, classes))
    known = names if isinstance(found[0], str) else tuple(range(len(names)))
    target = ArrayTarget("classification", known, names)
    target.labels(y)  # whatever is none of them is named
    return target


def learned_scale(y: Tensor, positive: bool = False) -> TargetScale:
    """Mean and sd of real targets (N, D) of the training part; of their logarithm where they are `positive`."""
    check_known(y, "training", ())
    found = TargetScale.learned(y.numpy(), positive)
    if 0.0 in found.sd:
        column = found.sd.index(0.0)
        first = y[:, column][~y[:, column].isnan()][0]
        raise ValueError(f"column {column} of y is {first:g} in all of the training part")
    return found


def _flat(y: Array, what: str) -> Array:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise ValueError(f"labels {what} must have the shape (N,), got {y.shape}; y.argmax(1) if they are one-hot")
    return y


def _values(y: Array, what: str) -> list[str | int]:
    """Labels as text or whole numbers."""
    if y.dtype.kind in "US":
        return [one.decode() if isinstance(one, bytes) else one for one in y.tolist()]
    refuse_bad(y, what)
    row = int((y != np.floor(y)).argmax()) if y.dtype.kind == "f" else 0
    if y[row] != np.floor(y[row]):
        message = f"{what}[{row}] is {y[row]}: labels are whole numbers or text; say task='regression'?"
        raise ArgumentError(message, "task")
    return [int(one) for one in y.tolist()]
