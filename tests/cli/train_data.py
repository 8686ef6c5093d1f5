"""Small data of a newcomer's own, and the command `bayesianize train`, for its tests."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from ended import Ended
from PIL import Image

from bnn.cli import app


def train(*args: Any) -> Ended:
    """Runs `bayesianize train` as a program would, notes included."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        code = app.run(["train", *map(str, args)])
    return Ended(code, out.getvalue(), err.getvalue())


def flowers(folder: Path, rows: int = 90, seed: int = 0) -> Path:
    """A CSV file: three classes, `kind`, that `width` and `height` tell apart; `note` says nothing."""
    rng = np.random.default_rng(seed)
    lines = ["width,height,note,kind"]
    for row in range(rows):
        label = row % 3
        width, height = rng.normal([label, -label], 0.3)
        lines.append(f"{width:.4f},{height:.4f},{row % 2},{['iris', 'lily', 'rose'][label]}")
    return _written(folder / "flowers.csv", lines)


def prices(folder: Path, rows: int = 60) -> Path:
    """A CSV file: a real target, `price` = 100 + 20 `size` and noise of sd 2."""
    rng = np.random.default_rng(1)
    sizes = rng.normal(size=rows)
    lines = ["size,price", *(f"{one:.4f},{100 + 20 * one + 2 * rng.normal():.4f}" for one in sizes)]
    return _written(folder / "prices.csv", lines)


def photos(folder: Path, count: int = 12, sides: tuple[int, ...] = (12,)) -> Path:
    """A folder of pictures: dark and light ones; sides are dealt in turn."""
    rng = np.random.default_rng(2)
    for name, level in (("dark", 60), ("light", 190)):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(count):
            side = sides[i % len(sides)]
            pixels = rng.integers(level - 50, level + 50, (side, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    return folder / "photos"


def arrays(path: Path, **more: Any) -> Path:
    """An .npz file of 30 inputs (30, 3) and real targets, and whatever else."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 3))
    np.savez(path, x=x, y=x[:, 0] + 0.1 * rng.normal(size=30), **more)
    return path


def _written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path
