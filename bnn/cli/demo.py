"""`bayesianize demo`: four methods on handwritten digits, measured and compared, with nothing to download."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn.cli.console import open_page, print_json, say
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json, Quiet, Seed

if TYPE_CHECKING:
    from bnn.report import Entry
    from bnn.train import Recipe

# Every network sees the digits 30 times; what is converted 20 times as a plain network, then 10 times as itself.
_PLAIN: dict[str, Any] = {"schedule": {"epochs": 30, "lr": 1e-3}}
_CONVERTED: dict[str, Any] = {"pretrain": {"epochs": 20, "lr": 1e-3}, "schedule": {"epochs": 10}}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "Deterministic": ("ours/digits-deterministic", _PLAIN),
    "Deep ensemble": ("ours/digits-ensemble", _PLAIN),
    "Compressed ensemble": ("ours/digits-compressed-ensemble", _CONVERTED),
    "FFG-U + Laplace": ("ours/digits-from-trained", _CONVERTED | {"laplace": "last"}),
}
OOD = ("letters", "noise")
CORRUPTIONS = {kind: [1, 3, 5] for kind in ("gaussian_noise", "impulse_noise", "contrast")}
TITLE = "Four methods on handwritten digits"
ABOUT = (
    "Every network sees 1,167 digits 30 times and is tested on 500 digits of other writers. The deep ensemble is three "
    "plain networks, the compressed one three in inducing form; FFG-U + Laplace is one in inducing form with Laplace's "
    "posterior over its last layer. Letters and noise are unlike any input they were trained on: a network that knows "
    "what it does not know is unsure about them."
)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the training: to see what comes out.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Trains a network, two ensembles and an inducing net with Laplace on digits, and compares them: a few minutes."""
    from bnn.cli.evaluated_runs import Wanted, evaluate_run
    from bnn.report import read_entry
    from bnn.train import RunFolder, run_recipe
    from bnn.train.runs.folder import is_finished

    if out.is_file():
        raise Mistake(f"{out} is a file; --out names a folder")
    progress = False if quiet else None
    for number, name in enumerate(METHODS, 1):
        folder, started = folder_of(out, name), time.monotonic()
        recipe = recipe_of(name, seed, quick)
        done = is_finished(RunFolder(folder), recipe)
        _tell(quiet, f"[{number}/{len(METHODS)}] {name}: {'already trained' if done else 'training'}")
        if done and measured(folder, quick):
            continue
        with _one_thread():
            run = run_recipe(recipe, folder, progress=progress)
            _tell(quiet, f"      after {time.monotonic() - started:.0f} s: measuring")
            evaluate_run(run, Wanted(ood=OOD, corruptions=None if quick else CORRUPTIONS, progress=progress))
    _tell(quiet, f"writing the report and its pictures to {out}{os.sep}")
    entries = [read_entry(folder_of(out, name), name) for name in METHODS]
    _finish(entries, out, as_json)
    if show:
        open_page(out / "report.html")


def folder_of(out: Path, name: str) -> Path:
    """Where the run of one of the methods is.

    >>> folder_of(Path("runs"), "FFG-U + Laplace").name
    'ffg-u-laplace'
    """
    return out / re.sub("[^a-z0-9]+", "-", name.lower())


def recipe_of(name: str, seed: int = 0, quick: bool = False) -> Recipe:
    """The recipe of one of the methods."""
    from bnn.train import Recipe

    preset, changes = METHODS[name]
    recipe = Recipe.preset(preset).but(seed=seed, calibrate=False, **changes)  # validation data are by the same writers
    if not quick:
        return recipe
    short: dict[str, Any] = {"schedule": {"epochs": max(1, recipe.schedule.epochs // 10)}}
    if recipe.pretrain is not None:
        short["pretrain"] = {"epochs": max(1, recipe.pretrain.epochs // 10)}
    return recipe.but(**short)


def measured(folder: Path, quick: bool = False) -> bool:
    """Whether a finished run was evaluated already, as the demo does it, and not trained since."""
    from bnn.evaluation import Evaluation
    from bnn.train.runs.folder import EVALUATION, NET

    file = folder / EVALUATION
    if not file.exists() or file.stat().st_mtime < (folder / NET).stat().st_mtime:
        return False
    found = Evaluation.load(file)
    wanted = [] if quick else [(kind, severity) for kind, levels in CORRUPTIONS.items() for severity in levels]
    return list(found.ood) == list(OOD) and [(one.kind, one.severity) for one in found.corruptions] == wanted


def _finish(entries: list[Entry], out: Path, as_json: bool) -> None:
    from bnn.cli.evaluated_runs import print_comparisons
    from bnn.report import comparison, gain, save_pictures, write

    page, plots = out / "report.html", out / "plots"
    write(entries, page, title=TITLE, about=ABOUT)
    files = save_pictures(entries, plots)
    found = comparison(entries)
    if as_json:
        said = ["".join(sentence) for sentence in gain(entries)]
        plots_made = [str(file) for file in files]
        print_json({"report": str(page), "plots": plots_made, "gain": " ".join(said), **found.to_dict()})
        return
    print_comparisons(entries)
    say(f"report:   {page}  (open it in a browser)")
    say(f"pictures: {plots}{os.sep}  ({len(files)} files)")
    small = folder_of(out, list(METHODS)[-1])
    say(f"next:     bayesianize predict {small} IMAGE...   or your own data: bayesianize train --data my.csv")


def _tell(quiet: bool, text: str) -> None:
    if not quiet:
        say(text)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors of 8 x 8 images are so small that two threads would mostly wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
