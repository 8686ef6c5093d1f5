"""The house look: colours that can be told apart, nothing drawn in any other, no global state."""

from __future__ import annotations

import ast
import io
import itertools
import pathlib
import re
import sys
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from plot_cases import SERIES, draw_everything, new_axes

import bnn.plots
from bnn import plots
from bnn.plots import FAINT, INK, PALETTE, SURFACE

ALLOWED = {*PALETTE, INK, FAINT, SURFACE}
WHITE, NEAR_BLACK = "#ffffff", "#16181d"

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen without red, and without green, cones
SEEN = {
    "all cones": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}


def linear(color: str) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Of two colours, as the accessibility guidelines of the web have it: 1 to 21."""
    dark, light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b*, under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.array([v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in xyz / [0.9505, 1, 1.089]])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def saved(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def test_colours_are_plain_and_distinct() -> None:
    assert len(PALETTE) >= 8
    assert len(ALLOWED) == len(PALETTE) + 3
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in ALLOWED)  # as they stand in an SVG


@pytest.mark.parametrize("color", PALETTE)
def test_every_colour_is_legible_on_light_and_on_dark(color: str) -> None:
    assert contrast(color, WHITE) >= 3
    assert contrast(color, NEAR_BLACK) >= 3


@pytest.mark.parametrize("eyes", list(SEEN))
def test_colours_can_be_told_apart(eyes: str) -> None:
    seen = [lab(np.asarray(SEEN[eyes]) @ linear(color)) for color in PALETTE]
    apart = {(i, j): float(np.linalg.norm(seen[i] - seen[j])) for i, j in itertools.combinations(range(len(seen)), 2)}
    assert min(apart.values()) > 12, apart  # a difference of 2 is just seen side by side
    assert min(distance for (_, j), distance in apart.items() if j < 4) > 16, apart


def test_series_differ_by_more_than_colour() -> None:
    looks = [plots.series(i) for i in range(8)]
    assert len({look["marker"] for look in looks}) == 8
    assert len({str(look["linestyle"]) for look in looks}) >= 4
    assert [look["color"] for look in looks] == list(PALETTE[:8])
    assert plots.series(len(PALETTE)) == plots.series(0)


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    with plots.theme():
        return draw_everything()


@pytest.fixture(scope="module")
def pages(figures: list[Figure]) -> list[str]:
    with plots.theme():
        return [saved(figure) for figure in figures]


def test_everything_is_drawn_in_these_colours_alone(pages: list[str]) -> None:
    found = set()
    for page in pages:
        styles = re.findall(r"(?:fill|stroke|color)(?::\s*|=\")([^;\"]+)", page)
        found |= {value for value in styles if value != "none" and not value.startswith("url(#")}
        without_ids = re.sub(r'(xlink:href="|id="|url\()[^")]*', "", page)  # ids begin with # as well
        found |= set(re.findall(r"#[0-9a-fA-F]{3,8}\b", without_ids))
    assert found <= ALLOWED, found - ALLOWED
    assert {INK, FAINT, SURFACE, *PALETTE[:2], PALETTE[5]} <= found


def test_nothing_is_black_for_want_of_a_colour(pages: list[str]) -> None:
    """SVG takes black where no fill is given, and matplotlib gives none for black."""
    for root in map(ElementTree.fromstring, pages):
        texts = [element for element in root.iter() if element.tag.endswith("}text")]
        assert texts  # text as text
        assert all(f"fill: {INK}" in text.get("style", "") for text in texts)
        aside = {path for defs in root.iter("{http://www.w3.org/2000/svg}defs") for path in defs.iter()}
        shapes = [
            element for element in root.iter() if element.tag.endswith(("}path", "}use")) and element not in aside
        ]
        assert all("fill:" in shape.get("style", "") for shape in shapes)


def test_what_is_drawn_and_saved_twice_is_the_same_twice(pages: list[str]) -> None:
    with plots.theme():
        again = Figure()
        SERIES[0].draw(again.subplots(), label="first")
        SERIES[0].draw(again.axes[0], label="second", color=PALETTE[5])
        assert saved(again) == pages[0]


@pytest.mark.usefixtures("pages")  # laid out when they are saved
def test_nothing_sticks_out_of_the_figure(figures: list[Figure]) -> None:
    for figure in figures:
        box, whole = figure.get_tightbbox(), figure.bbox_inches
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1
        assert whole.y0 <= box.y0
        assert box.y1 <= whole.y1


@pytest.mark.parametrize(
    "names", [["FFG-U"], ["Deterministic", "FFG-W", "FFG-U", "Ensemble-U"], ["a long name, " * 3] * 3]
)
def test_the_key_is_above_the_axes_and_within_the_figure(names: list[str]) -> None:
    with plots.theme():
        figure = Figure()
        ax = figure.subplots()
        for name in names:
            SERIES[0].draw(ax, label=name)
        figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    assert box.y0 >= ax.bbox.y1 - 1
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    assert not ax.get_legend().get_frame_on()


def test_theme_gives_everything_back() -> None:
    before = dict(mpl.rcParams)
    with plots.theme():
        assert mpl.rcParams["text.color"] == INK
        assert not mpl.rcParams["axes.spines.top"]
        assert dict(mpl.rcParams) != before
    assert dict(mpl.rcParams) == before


def test_pyplot_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error
    with plots.theme():
        assert draw_everything()
    assert draw_everything()  # and under anybody's settings


def test_matplotlib_is_loaded_by_functions_only() -> None:
    for path in pathlib.Path(bnn.plots.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not any(name.startswith("matplotlib") for name in names), path.name


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ax = new_axes()
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "bayesianize\[plots\]"'), plots.theme():
        pass
    with pytest.raises(ImportError, match=r'pip install "bayesianize\[plots\]"'):
        SERIES[0].draw(ax)
