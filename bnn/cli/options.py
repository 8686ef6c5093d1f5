"""Options that several commands share, and how lists of numbers are typed. Nothing here needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bnn.cli.mistakes import Mistake
from bnn.train.class_weight_options import BALANCED

NETS = ["fcn", "cnn", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]  # of `bnn.nn.nets.make_network`
MOST = 10_000_000  # of anything that a network has

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything random.")]
Samples = Annotated[int | None, typer.Option("--samples", min=0, help="Posterior draws; by default 20.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, as `train --out` wrote it.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")]


def whole_numbers(option: str, text: str, example: str) -> list[int]:
    """The whole numbers, each at least 1, that an option lists.

    >>> whole_numbers("--in-shape", "3,32,32", "3,32,32")
    [3, 32, 32]
    """
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST for part in parts):
        wanted = f"whole numbers from 1 to {MOST:,} with commas between, as {example}"
        raise Mistake(f"{option} must be {wanted}; got {text!r}")
    return [int(part) for part in parts]


def numbers(option: str, text: str, example: str) -> list[float]:
    """The numbers that an option lists.

    >>> numbers("--kl-weights", "1, 0.1", "1,0.1")
    [1.0, 0.1]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Mistake(f"{option} must be numbers with commas between, as {example}; got {text!r}") from None


def weights_by_class(option: str, text: str, example: str) -> str | dict[str, float]:
    """What an option says about the weights of classes: "balanced", or class=weight with commas between.

    >>> weights_by_class("--class-weights", "ja=5, nein=1", "ja=5,nein=1")
    {'ja': 5.0, 'nein': 1.0}
    """
    if text.strip() == BALANCED:
        return BALANCED
    pairs = [(name.strip(), weight) for name, _, weight in (part.rpartition("=") for part in text.split(","))]
    try:
        found = {name: float(weight) for name, weight in pairs}
    except ValueError:
        found = {}
    if "" in found or len(found) < len(pairs):
        wanted = f"{BALANCED}, or each class once with its weight, as {example}"
        raise Mistake(f"{option} is {wanted}; got {text!r}")
    return found


def json_object(option: str, text: str, example: str) -> dict[str, Any]:
    """The JSON object that an option holds.

    >>> json_object("--global-inducing", '{"inducing_rows": 8}', "")
    {'inducing_rows': 8}
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Mistake(f"{option} must be a JSON object, as {example}; got {text!r}")
    return found
