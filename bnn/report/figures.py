"""Which pictures a report has, each as a figure of matplotlib and as a file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnn import plots
from bnn._common.atomic import write_atomically
from bnn._common.extras import need
from bnn.plots.tradeoff import settle
from bnn.report.entry import Entry, grouped
from bnn.report.sections import calibration, corruptions, examples, ood, selective, tradeoff, training
from bnn.report.sections.picture import Picture, drawn, slug

MODULES = (calibration, ood, corruptions, selective, training, tradeoff)
SIZE, LINE = (4.2, 3.2), 0.17  # inches: of a figure, and of each line of a long key
FORMATS = ("png", "svg", "pdf")


def pictures(entries: Sequence[Entry]) -> Iterator[Picture]:
    """The pictures of runs on the same data, section by section; a section with nothing to show has none."""
    runs = drawn(entries)
    taken: set[str] = set()
    for module in MODULES:
        for picture in module.pictures(runs):
            yield replace(picture, key=_apart(picture.key, taken))


def _apart(key: str, taken: set[str]) -> str:
    """A key of its own: names that differ may have the same slug."""
    own, count = key, 1
    while own in taken:
        count += 1
        own = f"{key}-{count}"
    taken.add(own)
    return own


def figure_of(picture: Picture, runs: int, size: tuple[float, float] = SIZE) -> Any:
    """The picture as a figure of matplotlib, higher where the key is long; call it under `bnn.plots.theme`."""
    width, height = size
    height += LINE * max(0, runs - 2) if picture.overlaid else 0.0
    figure = need("matplotlib.figure", "plots").Figure(figsize=(width, height))
    axes = figure.subplots()
    picture.draw(axes)
    engine = figure.get_layout_engine()
    if engine is not None and axes.texts:  # names stand where the axes were before the layout
        engine.execute(figure)
        settle(axes)
    return figure


def save_pictures(
    entries: Sequence[Entry], folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Every picture of the report as a file; returns their paths.

    Args:
        entries: runs; those on other data go into folders of their own.
        folder: made if it is missing.
        formats: some of png, svg and pdf.
    """
    if isinstance(formats, str) or not formats or not set(formats) <= set(FORMATS):
        raise ValueError(f"formats must be some of {list(FORMATS)}, as ['png']; got {formats!r}")
    groups = grouped(entries)
    paths = []
    taken: set[str] = set()
    for group in groups:
        evaluation = group[0].evaluation
        own = _apart(slug(f"{evaluation.data} {evaluation.task}"), taken)
        place = Path(folder) / own if len(groups) > 1 else Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        with plots.theme():
            for key, figure in _figures(group):
                paths += [_saved(figure, place / f"{key}.{ending}", ending) for ending in formats]
    return paths


def _figures(entries: Sequence[Entry]) -> Iterator[tuple[str, Any]]:
    for picture in pictures(entries):
        figure = figure_of(picture, len(entries))
        figure.suptitle(picture.title.replace("$", r"\$"))
        yield picture.key, figure
    yield from examples.figures(entries)


def _saved(figure: Any, path: Path, ending: str) -> Path:
    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same picture is the same file
    figure.savefig(buffer, format=ending, metadata=dates.get(ending))
    write_atomically(buffer.getvalue(), str(path))
    return path
