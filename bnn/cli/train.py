"""`bayesianize train`: a run by a recipe file, a preset or flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn._common.text import counted
from bnn.cli.console import print_json, say
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json, Quiet
from bnn.cli.training.flags import Flags, with_flags
from bnn.train.prune_options import prune_options
from bnn.train.recipe import RUN

if TYPE_CHECKING:
    from bnn.cli.training.describe import Described
    from bnn.data.dataset import Data
    from bnn.evaluation.pieces import Size
    from bnn.train.runs.folder import RunFolder

DEVICE, OUT = (
    "cpu, cuda, cuda:1 or mps; by default cuda if there is one.",
    "The run's folder. [runs/DATA-NET-METHOD-seedN]",
)


@with_flags
def train(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A recipe, .json or .toml.")] = None,
    device: Annotated[str | None, typer.Option(help=DEVICE, rich_help_panel=RUN, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help=OUT, rich_help_panel=RUN, show_default=False)] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Trains a network with uncertainty: by a recipe file, a preset or flags. Started again, it resumes."""
    from bnn.cli.training.describe import describe, rehearse
    from bnn.cli.training.run_summary import lines, summary
    from bnn.train.execute import run_recipe
    from bnn.train.runs.folder import RunFolder, check_free, is_finished

    place = device_settings(device)
    run = describe(Flags(None if file is None else os.fspath(file), **flags))
    size = rehearse(run.recipe, run.data)
    folder = RunFolder(os.path.normpath(run.folder if out is None else out))
    check_free(folder, run.recipe)
    done = is_finished(folder, run.recipe)
    if not quiet:
        announce(folder, run, size, done)
    shown = None if as_json else True
    trained = run_recipe(run.recipe, folder, data=run.data, progress=False if quiet or done else shown, **place)
    if run.data.validation is not None:
        trained.write_validation(run.data)
    found = summary(trained, run.data, trained.write_promise(run.data))
    if as_json:
        print_json(found)
    else:
        print("\n".join(lines(found)))


def announce(folder: RunFolder, run: Described, size: Size, done: bool) -> None:
    """Says what is going to happen, and where."""
    data, recipe = run.data, run.recipe
    parts = {"training": data.train, "validation": data.validation, "test": data.test, "guarantee": data.guarantee}
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items() if part is not None)
    say(f"data: {data.name}, {data.task}{_targets(data)}, {counts} inputs")
    share = f"{100 * size.ratio:.0f} % of the plain network's {size.plain:,}"
    say(f"network: {recipe.net['name']}, {size.parameters:,} parameters, {share}")
    plain = (
        ""
        if recipe.pretrain is None
        else f"at most {counted(recipe.pretrain.epochs, 'epoch')} of a plain network, then "
    )
    more = "" if recipe.prune is None else f", then {prune_options(recipe.prune, recipe.schedule.epochs).epochs} pruned"
    state = (
        "finished already, nothing is trained" if done else f"{plain}{counted(recipe.schedule.epochs, 'epoch')}{more}"
    )
    say(f"run: {folder}, {state}")


def _targets(data: Data) -> str:
    """What real targets are called, in how many training inputs each is missing, and their scale, for one line."""
    if data.task == "classification" or not data.targets:
        return ""
    y = data.train.y
    assert y is not None
    missing = y.reshape(len(y), -1).isnan().sum(0).tolist()
    names = [f"{name} (missing in {n:,})" if n else name for name, n in zip(data.targets, missing, strict=True)]
    log = " on a log scale" if data.target is not None and data.target.log else ""
    return f" of {' and '.join(names)}{log}"


def device_settings(device: str | None) -> dict[str, Any]:
    """`--device` as arguments of `bnn.fit`."""
    import torch

    kind, _, index = (device or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in there or (index and not index.isdecimal()):
        raise Mistake(f"unknown device {device!r}; expected cpu, cuda, cuda:1 or mps")
    if not there[kind] or (kind == "cuda" and index and int(index) >= torch.cuda.device_count()):
        usable = ", ".join(name for name, found in there.items() if found)
        raise Mistake(f"there is no device {device} here; there is {usable}")
    return {"accelerator": kind, "devices": [int(index)] if index and kind == "cuda" else 1}
