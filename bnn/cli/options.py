"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NETS = ["fcn", "cnn", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]  # `make_network` knows these
MOST = 10_000_000  # of anything that a network has

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything random.")]
Samples = Annotated[int | None, typer.Option("--samples", min=0, help="Posterior draws; by default 20.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, as `train --out` wrote it.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")]
