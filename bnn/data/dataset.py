"""What a data set is to the rest of the library: parts that hold tensors, and what is needed to read more like them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bnn.data.split import split
from bnn.data.target_scale import TargetScale, check_known

Task = Literal["classification", "regression"]
TASKS = ["classification", "regression"]


class Preparation(Protocol):
    """Turns raw inputs into what a network takes; learned on the training part and stored with the model as JSON.

    Its class has a `kind`, and a class method `from_dict` that reads what `to_dict` gave.
    """

    def __call__(self, raw: Any) -> Tensor:
        """Prepared inputs (N, ...) of a floating type."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with its kind under "kind"; `bnn.data.preparation` reads it back."""


@dataclass(frozen=True)
class Part:
    """Inputs and targets of one part of a data set (training, validation, test), in memory.

    Args:
        x: inputs as stored (N, ...): images are uint8 (N, C, H, W), rows of a table float (N, D) and scaled already.
            For a network that takes several, a tuple or dict of such tensors.
        y: labels int64 (N,), or real targets (N, D) in units of `Data.target`, where NaN is a missing one of several;
            None for a set without labels.
        prepare: what turns stored inputs into what a network takes; None: they are that already.
    """

    x: Any
    y: Tensor | None = None
    prepare: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        tensors = tensors_in(self.x)
        if not tensors or any(not isinstance(one, Tensor) or one.ndim == 0 for one in tensors):
            wrong = next((one for one in tensors if not isinstance(one, Tensor) or one.ndim == 0), self.x)
            raise TypeError(f"x must be a tensor (N, ...), got {_shown(wrong)}; torch.as_tensor(x) makes one")
        if len({len(one) for one in tensors}) > 1:
            raise ValueError(f"all tensors of x must be equally long, got {[len(one) for one in tensors]}")
        if self.y is not None and (not isinstance(self.y, Tensor) or len(self.y) != len(self)):
            raise ValueError(f"y must be a tensor with one target per input, {len(self)}; got {_shown(self.y)}")

    def __len__(self) -> int:
        return len(tensors_in(self.x)[0])

    def inputs(self, index: Any = slice(None)) -> Any:
        """Prepared inputs at `index` (anything that indexes a tensor)."""
        chosen = each(self.x, lambda tensor: tensor[index])
        return chosen if self.prepare is None else self.prepare(chosen)

    def tensors(self) -> tuple[Any, Tensor]:
        """All prepared inputs, and all targets."""
        if self.y is None:
            raise ValueError("this part has no targets; .inputs() gives its inputs")
        return self.inputs(), self.y

    def subset(self, index: Any) -> Part:
        """The part with only the inputs at `index`."""
        return replace(self, x=each(self.x, lambda x: x[index]), y=None if self.y is None else self.y[index])


@dataclass(frozen=True)
class Data:
    """A data set: its parts, and what is needed to understand predictions and to read more of the same.

    Args:
        name: as in `bnn.data.load(name)`, or a file's name.
        task: "classification" or "regression".
        train, test, validation: the parts; `validation` is made by `with_validation` where the set has none.
        guarantee: inputs for a guarantee (`bnn.conformal`), which neither training nor any choice ever sees.
        classes: names of the classes, in the order of the labels; empty for regression.
        target: how real targets are scaled; None for classes, or where they are not.
        targets: names of the real targets, or of the one column that holds the class; empty where they have none.
        hint: what may be done better with these data, in a sentence; None: nothing that is known.
        preparation: reads raw inputs (images uint8, rows of a table) as the network takes them.
        augment: a random change of a stored training batch, (x, generator) -> x of the same shape and type.
    """

    name: str
    task: Task
    train: Part
    test: Part | None = None
    validation: Part | None = None
    classes: tuple[str, ...] = ()
    target: TargetScale | None = None
    preparation: Preparation | None = None
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    guarantee: Part | None = None
    targets: tuple[str, ...] = ()
    hint: str | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"unknown task {self.task!r}; expected one of {TASKS}")
        if self.task == "classification" and len(self.classes) < 2:
            raise ValueError(f"classification needs at least two classes, got {list(self.classes)}")
        if len(self.train) == 0:
            raise ValueError(f"{self.name}: the training part is empty")
        for part in (self.train, self.test, self.validation, self.guarantee):
            if part is not None and not isinstance(part.x, Tensor):
                raise TypeError(
                    f"{self.name}: a Data holds one tensor of inputs; several go in a Part or a pair (x, y)"
                )
        if self.targets and len(self.targets) != (self.out_features if self.task == "regression" else 1):
            raise ValueError(f"{self.name}: {self.out_features} targets cannot have the names {list(self.targets)}")
        check_known(self.train.y, "training", self.targets)
        if self.guarantee is not None:
            check_known(self.guarantee.y, "guarantee", self.targets)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """The shape of one prepared input."""
        return tuple(self.train.inputs(slice(0, 1)).shape[1:])

    @property
    def out_features(self) -> int:
        """How many outputs a network needs: one per class, or per real target."""
        if self.task == "classification":
            return len(self.classes)
        return 1 if self.train.y is None or self.train.y.ndim < 2 else self.train.y.shape[1]

    def with_validation(self, fraction: float = 0.1, seed: int = 0) -> Data:
        """This set with a random `fraction` of the training part set aside as `validation`.

        Classes keep their shares, and every class at least one input for training; the split depends on `seed` alone.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must lie between 0 and 1, got {fraction!r}")
        labels = self.train.y if self.task == "classification" else None
        parts = split(len(self.train), 0.0, fraction, seed, labels, self.classes, self.name)
        return replace(self, train=self.train.subset(parts.train), validation=self.train.subset(parts.validation))


def each(x: Any, function: Callable[[Tensor], Any]) -> Any:
    """`function` of every tensor of inputs: of one, or of those in a tuple, list or dict; what is no tensor stays.

    >>> each({"ids": torch.arange(3), "more": (torch.ones(3),)}, len)
    {'ids': 3, 'more': (3,)}
    """
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {name: each(part, function) for name, part in x.items()}
    if not _is_sequence(x):
        return x
    parts = [each(part, function) for part in x]
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)  # a named tuple, or another


def tensors_in(x: Any) -> list[Any]:
    """The tensors of inputs, or whatever else is in their place."""
    if _is_sequence(x) or isinstance(x, Mapping):
        return [one for part in (x.values() if isinstance(x, Mapping) else x) for one in tensors_in(part)]
    return [x]


def _is_sequence(x: Any) -> bool:
    return isinstance(x, tuple | list) and not isinstance(x, PackedSequence)  # which is one tensor, packed


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
