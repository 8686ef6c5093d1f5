"""Which pictures a report has, each as a figure of matplotlib, as a file, and as SVG that takes its page's colours."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnn import plots
from bnn._common.atomic import write_atomically
from bnn._common.extras import need
from bnn.plots.tradeoff import settle
from bnn.report.entry import Entry, grouped
from bnn.report.sections import calibration, confusion, corruptions, examples, ood, selective, tradeoff, training
from bnn.report.sections.picture import Picture, drawn, slug

MODULES = (confusion, calibration, ood, corruptions, selective, training, tradeoff)
SIZE, LINE = (4.2, 3.2), 0.17  # inches: of a figure, and of each line of a long key
FORMATS = ("png", "svg", "pdf")
LIGHTER = 0.2  # how far colours move towards white in the dark theme

# selectors as in report.css, where the other colours are
PALETTE_STYLE = """:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}
:root[data-theme="dark"] {{ {dark} }}
@media print {{ :root, :root[data-theme], :root:not([data-theme="light"]) {{ {light} }} }}"""


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
    width, height = picture.size or size
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


def variable(place: int) -> str:
    """The name of the colour of the run in this place."""
    return f"--series-{place}"


# colour as drawn -> the page's variable; both themes define it
COLORS = {plots.INK: "--ink", plots.FAINT: "--faint", plots.SURFACE: "--surface"} | {
    color: variable(i) for i, color in enumerate(plots.PALETTE)
}
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def inline_svg(figure: Any, prefix: str, label: str) -> str:
    """The figure as an <svg> element.

    Args:
        figure: of matplotlib, drawn under `bnn.plots.theme`.
        prefix: starts every id in it; unique in the page.
        label: its content in words, HTML-escaped already.
    """
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's font is another one
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # once is enough: saving would lay it out, and draw it, again
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    return _themed(_own_ids(_element(buffer.getvalue(), label), prefix))


def _element(text: str, label: str) -> str:
    """Without prolog, comments, metadata and fixed size; as one image with a description."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    start = text.index(">")
    box = re.search(r'viewBox="[^"]*"', text[:start])
    assert box is not None
    opening = f'<svg {box.group()} role="img" aria-label="{label}" preserveAspectRatio="xMidYMid meet"'
    text = opening + text[start:]
    text = text.replace("xlink:href", "href")
    text = re.sub(r"font: (?:[a-z0-9]+ )*?([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"(\d\.\d\d)\d{2,}", r"\1", text)  # hundredths of a point are enough
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _own_ids(text: str, prefix: str) -> str:
    """Every id, and every reference to one, gets the prefix; ids that nothing refers to go."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)


def _themed(text: str) -> str:
    for color, name in COLORS.items():
        text = re.sub(re.escape(color), f"var({name})", text, flags=re.IGNORECASE)
    return text


def palette_style() -> str:
    """CSS that defines `--series-0`, `--series-1`, ...: the palette of `bnn.plots`, lighter on dark ground."""
    light = " ".join(f"{variable(i)}: {color};" for i, color in enumerate(plots.PALETTE))
    dark = " ".join(f"{variable(i)}: {lighter(color)};" for i, color in enumerate(plots.PALETTE))
    return PALETTE_STYLE.format(light=light, dark=dark)


def lighter(color: str) -> str:
    """A colour moved towards white.

    >>> lighter("#000000"), lighter("#ffffff"), lighter("#3264c8")
    ('#333333', '#ffffff', '#5b83d3')
    """
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + LIGHTER * (255 - part)):02x}" for part in parts)
