"""Tiny runs that the tests of `bayesianize predict` share, and the command itself."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ended import Ended
from PIL import Image

import bnn
from bnn.cli import app
from bnn.likelihoods import ClassPrediction, RegressionPrediction
from bnn.nn.families.inducing import InducingBase
from bnn.train import Recipe, load_run, run_recipe

METHOD = {"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4, "max_lamda": 0.3, "init_lamda": 0.2}
PLAIN = {"inference": "deterministic"}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def command(*args: Any, terminal: bool = False) -> Ended:
    """Runs `bayesianize predict` as a program would, notes included; standard output may be a terminal."""
    return command_of("predict", *args, terminal=terminal)


def command_of(name: str, *args: Any, terminal: bool = False) -> Ended:
    """The same of any command."""
    out, err = _Terminal() if terminal else io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        code = app.run([name, *map(str, args)])
    return Ended(code, out.getvalue(), err.getvalue())


def rows_of(*args: Any) -> list[dict[str, Any]]:
    """The rows that the command gives as JSON."""
    ended = command(*args, "--json")
    assert ended.code == 0, ended.err
    return list(ended.json["rows"])


def trained(folder: Path, data: dict[str, Any], net: dict[str, Any], **more: Any) -> Path:
    """A run of one quick recipe."""
    values = {"data": data, "net": net, "method": METHOD, "schedule": {"epochs": 2, "lr": 0.02}} | more
    run_recipe(Recipe.from_dict(values), folder, progress=False)
    return folder


def expected(run: Path, x: torch.Tensor, samples: int | None = None, seed: int = 0) -> Any:
    """What `bnn.predict` says about prepared inputs, with the outputs of the draws."""
    found = load_run(run)
    if any(isinstance(module, InducingBase) for module in found.net.modules()):
        bnn.set_sampling_(found.net, "weight")  # so that company does not matter
    prediction = bnn.predict(
        found.net, x, samples, found.likelihood, torch.Generator().manual_seed(seed), keep_samples=True
    )
    assert isinstance(prediction, ClassPrediction | RegressionPrediction)
    return prediction


def write_table(path: Path, rows: int = 80, seed: int = 0) -> Path:
    """A table with a number, a category, a class and a real target."""
    random = np.random.default_rng(seed)
    lines = ["id,height,kind,label,price"]
    for i in range(rows):
        height, kind = random.normal(), "ab"[i % 2]
        label = "tall" if height + 0.3 * random.normal() > 0 else "short"
        lines.append(f"r{i},{height:.4f},{kind},{label},{1000 + 50 * height + 10 * random.normal():.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_image(path: Path, size: tuple[int, int] = (8, 8), seed: int = 0) -> Path:
    """A grey image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)).save(path)
    return path


def files_in(folder: Path) -> set[str]:
    """The names of everything in a folder."""
    return {one.name for one in folder.iterdir()}
