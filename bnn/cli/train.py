"""`bayesianize train`: a run by a recipe file, a preset or flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bnn import likelihoods
from bnn.cli.console import print_json, say
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json, Quiet
from bnn.cli.training.describe import Described, describe
from bnn.cli.training.flags import Flags
from bnn.cli.training.methods import METHODS
from bnn.cli.training.rehearsal import rehearse
from bnn.cli.training.run_folder import check_folder, is_finished
from bnn.cli.training.summary import lines, summary
from bnn.cli.validation import write_validation
from bnn.evaluation.pieces import Size
from bnn.train.execute import run_recipe

DATA, NETWORK, TRAINING, RUNNING = "The data", "Network and method", "Training", "The run"


def _flag(name: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False, **more)


def train(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A recipe, .json or .toml.")] = None,
    preset: Annotated[
        str | None, _flag("--preset", DATA, "A recipe by name; `bayesianize presets` lists them.")
    ] = None,
    data: Annotated[
        str | None, _flag("--data", DATA, "A CSV file, a folder of images, an .npz file, or a named set, as digits.")
    ] = None,
    target: Annotated[str | None, _flag("--target", DATA, "The column of the CSV file to predict.")] = None,
    drop: Annotated[str | None, _flag("--drop", DATA, "Columns to leave out, with commas between.")] = None,
    task: Annotated[str | None, _flag("--task", DATA, "classification or regression, where it is in doubt.")] = None,
    image_size: Annotated[str | None, _flag("--image-size", DATA, "Scale images to N or HxW pixels.")] = None,
    test: Annotated[str | None, _flag("--test", DATA, "Share of test data [0.2], or a CSV file of test rows.")] = None,
    validation: Annotated[float | None, _flag("--validation", DATA, "Share of validation data [0.1].")] = None,
    download: Annotated[bool, _flag("--download", DATA, "Fetch a named set that is not there.")] = False,
    net: Annotated[
        str | None, _flag("--net", NETWORK, "fcn, cnn, resnet18, ...; by default fcn for tables, cnn for images.")
    ] = None,
    hidden: Annotated[str | None, _flag("--hidden", NETWORK, "Widths of the hidden layers, as 64,64.")] = None,
    channels: Annotated[str | None, _flag("--channels", NETWORK, "Channels of the convolutions, as 32,64.")] = None,
    method: Annotated[str | None, _flag("--method", NETWORK, f"{', '.join(METHODS)}. [ffg-u]")] = None,
    rows: Annotated[int | None, _flag("--rows", NETWORK, "Rows of the inducing matrix of every layer.", min=1)] = None,
    cols: Annotated[int | None, _flag("--cols", NETWORK, "Its columns.", min=1)] = None,
    members: Annotated[
        int | None, _flag("--members", NETWORK, "Members of ensemble-u, or number of networks.", min=1)
    ] = None,
    max_lamda: Annotated[float | None, _flag("--max-lamda", NETWORK, "Cap of lamda; 0: W is a point given U.")] = None,
    max_sd: Annotated[float | None, _flag("--max-sd", NETWORK, "Cap of the sds of U, or of the weights.")] = None,
    likelihood: Annotated[
        str | None, _flag("--likelihood", NETWORK, f"Of the targets: {', '.join(likelihoods.names())}.")
    ] = None,
    epochs: Annotated[
        int | None, _flag("--epochs", TRAINING, "Epochs; by default by the size of the data.", min=1)
    ] = None,
    ml_epochs: Annotated[
        float | None, _flag("--ml-epochs", TRAINING, "Epochs of maximum likelihood at the start.", min=0)
    ] = None,
    annealing_epochs: Annotated[
        float | None, _flag("--annealing-epochs", TRAINING, "Epochs over which the KL then grows.", min=0)
    ] = None,
    pretrain_epochs: Annotated[
        int | None, _flag("--pretrain-epochs", TRAINING, "First train a plain network so long; 0: do not.", min=0)
    ] = None,
    weights: Annotated[str | None, _flag("--weights", TRAINING, "Start from a network that bnn.save wrote.")] = None,
    lr: Annotated[float | None, _flag("--lr", TRAINING, "Learning rate.")] = None,
    milestones: Annotated[
        str | None, _flag("--milestones", TRAINING, "Epochs after which it is divided by 10, as 60,120.")
    ] = None,
    batch_size: Annotated[int | None, _flag("--batch-size", TRAINING, "Inputs per step.", min=1)] = None,
    samples: Annotated[int | None, _flag("--samples", TRAINING, "Posterior draws per step.", min=1)] = None,
    kl_weight: Annotated[float | None, _flag("--kl-weight", TRAINING, "Weight of the KL.", min=0)] = None,
    patience: Annotated[
        int | None, _flag("--patience", TRAINING, "Stop after so many epochs without a better validation NLL.", min=1)
    ] = None,
    settings: Annotated[
        list[str] | None, _flag("--set", TRAINING, "Any other value of the recipe: schedule.clip=1.0, data.first=500.")
    ] = None,
    seed: Annotated[int | None, _flag("--seed", RUNNING, "Of everything random. [0]", min=0)] = None,
    device: Annotated[
        str | None, _flag("--device", RUNNING, "cpu, cuda, cuda:1 or mps; by default cuda if there is one.")
    ] = None,
    out: Annotated[Path | None, _flag("--out", RUNNING, "The run's folder. [runs/DATA-NET-METHOD-seedN]")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Trains a network with uncertainty: by a recipe file, a preset or flags. Started again, it goes on."""
    flags = Flags.of(locals() | {"file": None if file is None else os.fspath(file)})
    place = device_settings(device)
    run = describe(flags)
    size = rehearse(run.recipe, run.data)
    folder = os.path.normpath(run.folder if out is None else out)
    check_folder(folder, run.recipe)
    done = is_finished(folder, run.recipe)
    if not quiet:
        announce(folder, run, size, done)
    shown = None if as_json else True
    outcome = run_recipe(run.recipe, folder, data=run.data, progress=False if quiet or done else shown, **place)
    if run.data.validation is not None:
        write_validation(folder, outcome, run.data)
    found = summary(folder, outcome, run.data)
    if as_json:
        print_json(found)
    else:
        print("\n".join(lines(found)))


def announce(folder: str, run: Described, size: Size, done: bool) -> None:
    """Says what is going to happen, and where."""
    data, recipe = run.data, run.recipe
    parts = {"training": data.train, "validation": data.validation, "test": data.test}
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items() if part is not None)
    say(f"data: {data.name}, {data.task}, {counts} inputs")
    share = f"{100 * size.ratio:.0f} % of the plain network's {size.plain:,}"
    say(f"network: {recipe.net['name']}, {size.parameters:,} parameters, {share}")
    plain = "" if recipe.pretrain is None else f"at most {recipe.pretrain.epochs} epochs of a plain network, then "
    state = "finished already, nothing is trained" if done else f"{plain}{recipe.schedule.epochs} epochs"
    say(f"run: {folder}, {state}")


def device_settings(device: str | None) -> dict[str, Any]:
    """`--device` as arguments of `bnn.fit`."""
    kind, _, index = (device or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in there or (index and not index.isdecimal()):
        raise Mistake(f"unknown device {device!r}; expected cpu, cuda, cuda:1 or mps")
    if not there[kind] or (kind == "cuda" and index and int(index) >= torch.cuda.device_count()):
        usable = ", ".join(name for name, found in there.items() if found)
        raise Mistake(f"there is no device {device} here; there is {usable}")
    return {"accelerator": kind, "devices": [int(index)] if index and kind == "cuda" else 1}
