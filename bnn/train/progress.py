"""Live progress of a run: epoch, data term, KL parts, accuracy, ECE, time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bnn._common.extras import need
from bnn._common.progress import rich_bar

SHOWN = (
    "data",
    "accuracy",
    "ece",
    "rmse",
    "validation_nll",
    "validation_accuracy",
    "validation_ece",
    "validation_rmse",
)
KL = ("kl_u", "kl_lamda")
BETWEEN = 2.0  # seconds between lines
SHORT = {"validation_nll": "val nll", "validation_accuracy": "val acc", "validation_ece": "val ece", "accuracy": "acc"}
PERCENT = ("accuracy", "ece", "validation_accuracy", "validation_ece")


class Progress:
    """Does nothing: the base of the others, and what processes other than the first use."""

    def step(self, epoch: float, numbers: dict[str, Any]) -> None:
        """Training has come to `epoch` (fractional); these are the numbers so far."""

    def epoch(self, numbers: dict[str, Any]) -> None:
        """An epoch has ended."""


class Lines(Progress):
    """One line per epoch, for logs; of short epochs one every two seconds, the first and the last."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.printed = epochs, -math.inf

    def epoch(self, numbers: dict[str, Any]) -> None:
        if numbers["epoch"] + 1 < self.epochs and time.monotonic() - self.printed < BETWEEN:
            return
        self.printed = time.monotonic()
        print(f"epoch {numbers['epoch'] + 1}/{self.epochs}  {described(numbers)}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A bar that moves."""

    def __init__(self, bar: Any, epochs: int, done: float, title: str) -> None:
        self.bar, self.epochs = bar, epochs
        self.task = bar.add_task(title, total=epochs, completed=done, numbers="")
        self.ended: dict[str, Any] = {}  # what only the end of an epoch tells

    def step(self, epoch: float, numbers: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=epoch, numbers=described(self.ended | numbers))

    def epoch(self, numbers: dict[str, Any]) -> None:
        self.ended = {name: value for name, value in numbers.items() if name.startswith("validation_")}
        self.step(numbers["epoch"] + 1, numbers)


@contextmanager
def progress_of(wanted: bool | None, epochs: int, done: float = 0.0, title: str = "training") -> Iterator[Progress]:
    """A bar on terminals; elsewhere one line per epoch if `wanted`, nothing if None."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Progress()
    elif not sys.stderr.isatty():
        yield Lines(epochs)
    else:
        with _rich_bar() as bar:
            yield Bar(bar, epochs, done, title)


def described(numbers: dict[str, Any]) -> str:
    """The numbers people watch, in one line.

    >>> described({"data": 0.25, "kl_u": 0.001, "kl_lamda": 0.2, "accuracy": 0.912, "epoch": 3})
    'data 0.250  kl 0.001+0.200  acc 91.2%'
    """
    shown = [f"{SHORT.get(name, name)} {_number(name, numbers[name])}" for name in SHOWN if name in numbers]
    parts = [numbers[name] for name in KL if name in numbers]
    kl = [f"{part:.3f}" for part in parts] if any(parts) else []  # a plain network has none
    return "  ".join([*shown[:1], *([f"kl {'+'.join(kl)}"] if kl else []), *shown[1:]])


def _number(name: str, value: float) -> str:
    return f"{value:.1%}" if name in PERCENT else f"{value:.3f}"


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
