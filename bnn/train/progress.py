"""Live progress of a run: epoch, NLL, KL parts, accuracy, ECE, RMSE in the target's own units, time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bnn._common.extras import need
from bnn._common.progress import rich_bar
from bnn.metrics import written
from bnn.train.units import AS_THEY_ARE, Units

TRAINING = ("data", "rmse", "accuracy", "ece")
VALIDATION = ("validation_nll", "validation_rmse", "validation_accuracy", "validation_ece")
KL = ("kl_u", "kl_lamda")
BETWEEN = 2.0  # seconds between lines
TITLES = {"data": "NLL", "nll": "NLL", "rmse": "RMSE", "accuracy": "accuracy", "ece": "ECE"}  # as of every result


class Progress:
    """Does nothing: the base of the others, and what processes other than the first use."""

    def step(self, epoch: float, numbers: dict[str, Any]) -> None:
        """Training has come to `epoch` (fractional); these are the numbers so far."""

    def epoch(self, numbers: dict[str, Any]) -> None:
        """An epoch has ended."""


class Lines(Progress):
    """One line per epoch, for logs; of short epochs one every two seconds, the first and the last."""

    def __init__(self, epochs: int, units: Units) -> None:
        self.epochs, self.units, self.printed = epochs, units, -math.inf

    def epoch(self, numbers: dict[str, Any]) -> None:
        if numbers["epoch"] + 1 < self.epochs and time.monotonic() - self.printed < BETWEEN:
            return
        self.printed = time.monotonic()
        print(
            f"epoch {numbers['epoch'] + 1}/{self.epochs}  {described(numbers, self.units)}", file=sys.stderr, flush=True
        )


class Bar(Progress):
    """A bar that moves."""

    def __init__(self, bar: Any, epochs: int, done: float, title: str, units: Units) -> None:
        self.bar, self.epochs, self.units = bar, epochs, units
        self.task = bar.add_task(title, total=epochs, completed=done, numbers="")
        self.ended: dict[str, Any] = {}  # what only the end of an epoch tells

    def step(self, epoch: float, numbers: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=epoch, numbers=described(self.ended | numbers, self.units))

    def epoch(self, numbers: dict[str, Any]) -> None:
        self.ended = {name: value for name, value in numbers.items() if name.startswith("validation_")}
        self.step(numbers["epoch"] + 1, numbers)


@contextmanager
def progress_of(
    wanted: bool | None,
    epochs: int,
    done: float = 0.0,
    title: str = "training",
    units: Units = AS_THEY_ARE,
) -> Iterator[Progress]:
    """A bar on terminals; elsewhere one line per epoch if `wanted`, nothing if None."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Progress()
    elif not sys.stderr.isatty():
        yield Lines(epochs, units)
    else:
        with _rich_bar() as bar:
            yield Bar(bar, epochs, done, title, units)


def described(numbers: dict[str, Any], units: Units = AS_THEY_ARE) -> str:
    """The numbers people watch, in one line: of the steps of training, whose draws are single ones; of validation data.

    >>> described({"data": 0.25, "kl_u": 0.001, "kl_lamda": 0.2, "accuracy": 0.912, "epoch": 3})
    'training NLL 0.250, accuracy 91.2 %, KL 0.001 + 0.200'
    >>> described({"data": 0.9, "rmse": 0.5, "validation_nll": 0.8}, Units(11.5, 11.5, 115000.0))
    'training NLL 12.400, RMSE 57,500; validation NLL 12.300'
    """
    parts = [numbers[name] for name in KL if name in numbers]
    kl = [f"KL {' + '.join(f'{part:.3f}' for part in parts)}"] if any(parts) else []  # a plain network has none
    training = ", ".join([*(_number(name, numbers[name], units) for name in TRAINING if name in numbers), *kl])
    validation = ", ".join(_number(name, numbers[name], units) for name in VALIDATION if name in numbers)
    return "; ".join(f"{what} {one}" for what, one in (("training", training), ("validation", validation)) if one)


def _number(name: str, value: float, units: Units) -> str:
    """A number with its title, in the units that are shown."""
    kind, shown = name.removeprefix("validation_"), units.shown(name, value)
    if kind in ("accuracy", "ece"):
        return f"{TITLES[kind]} {written.percent(shown)}"
    if kind == "rmse":
        return f"{TITLES[kind]} {written.real(shown)}{f' ({units.note})' if units.note else ''}"
    return f"{units.loss if kind == 'data' else TITLES[kind]} {shown:.3f}"


def _rich_bar() -> Any:
    rich, column = need("rich.progress", "train"), need("rich.table", "train").Column

    def fixed(width: int) -> Any:
        return column(no_wrap=True, min_width=width)

    columns = (
        rich.TextColumn("epoch {task.completed:.1f}/{task.total:.0f}", table_column=fixed(12)),
        rich.BarColumn(bar_width=8, table_column=fixed(8)),
        rich.TimeRemainingColumn(table_column=fixed(7)),
        rich.TextColumn(
            "left  {task.fields[numbers]}", table_column=column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
    )
    return rich_bar(*columns, expand=True)
