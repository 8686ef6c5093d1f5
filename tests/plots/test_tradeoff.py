"""The tradeoff: its point, its bars, its ticks, and names that keep clear of each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plot_cases import NAN, ends, lines, new_axes, ticks

from bnn import plots

NAMES = ["Deterministic", "FFG-W", "FFG-U", "Ensemble-U", "FCG-W", "Deep ensemble", "MC dropout"]


def test_a_point_with_bars() -> None:
    ax = plots.tradeoff(
        new_axes(), 200.0, 0.9, xerr=(100, 400), yerr=(0.8, 0.95), xlabel="seconds", ylabel="accuracy", percent=True
    )
    assert lines(ax)[0].get_xydata().tolist() == [[200, 0.9]]
    assert ends(ax) == [[[200, 0.8], [200, 0.95]], [[100, 0.9], [400, 0.9]]]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("seconds", "accuracy", "linear")
    assert "90%" in ticks(ax.yaxis)
    assert not ax.texts


def test_bars_that_are_not_known_are_left_out() -> None:
    ax = plots.tradeoff(new_axes(), 1.0, 2.0, xerr=(NAN, 2), yerr=(1, float("inf")), xlabel="x", ylabel="y")
    assert not ends(ax)


def test_the_marker_asked_for() -> None:
    assert lines(plots.tradeoff(new_axes(), 1, 2, marker="*"))[0].get_marker() == "*"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1e3, 1e6], {"1k", "10k", "100k", "1M"}),
        ([5e3, 5e4], {"5k", "10k", "20k", "50k"}),
        ([0.01, 0.5], {"0.01", "0.1"}),
        ([40.0, 50.0], {"40", "44"}),  # less than a power of ten: even steps
    ],
)
def test_ticks_of_a_logarithmic_axis(values: list[float], shown: set[str]) -> None:
    ax = new_axes()
    for x in values:
        plots.tradeoff(ax, x, 0.5, log_x=True)
    assert ax.get_xscale() == "log"
    assert shown <= set(ticks(ax.xaxis))
    assert len(ticks(ax.xaxis)) <= 8


def test_no_logarithm_of_nothing() -> None:
    ax = new_axes()
    with pytest.raises(ValueError, match="x must be > 0 on a logarithmic axis; got 0: use log_x=False"):
        plots.tradeoff(ax, 0, 1, log_x=True)
    assert not ax.lines


def drawn(points: list[tuple[float, float]], names: list[str], bar: float, **how: Any) -> Axes:
    """Points with names at the size of a report, laid out as they are saved."""
    with plots.theme():
        figure = Figure()
        ax = figure.subplots()
        for (x, y), name in zip(points, names, strict=True):
            yerr = (y - bar, y + bar) if bar else None
            plots.tradeoff(ax, x, y, label=name, yerr=yerr, xlabel="parameters", ylabel="accuracy", **how)
        figure.draw_without_rendering()
    return ax


def assert_clear(ax: Axes, names: list[str]) -> None:
    boxes = [text.get_window_extent() for text in ax.texts]
    assert [text.get_text() for text in ax.texts] == names
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert ax.bbox.x0 <= box.x0
        assert box.x1 <= ax.bbox.x1
        assert ax.bbox.y0 <= box.y0
        assert box.y1 <= ax.bbox.y1
    middles = ax.transData.transform([line.get_xydata()[0] for line in lines(ax)])
    assert not any(box.contains(*middle) for box in boxes for middle in middles)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("log_x", [False, True])
def test_six_names_stay_apart_and_inside(seed: int, log_x: bool) -> None:
    random = np.random.default_rng(seed)
    points = list(zip(10 ** random.uniform(3, 6, 6), random.uniform(0.9, 0.97, 6), strict=True))
    assert_clear(drawn(points, NAMES[:6], bar=0.005, log_x=log_x), NAMES[:6])


def test_names_of_points_in_two_columns() -> None:
    points = [(1.0 + 0.1 * (i % 2), 0.9 + 0.01 * i) for i in range(7)]
    assert_clear(drawn(points, NAMES, bar=0), NAMES)


def test_points_at_the_same_place() -> None:
    ax = drawn([(1.0, 0.9)] * 3, NAMES[:3], bar=0)
    assert_clear(ax, NAMES[:3])


def test_one_name_is_right_of_its_point() -> None:
    text = drawn([(10.0, 0.9)], ["alone"], bar=0).texts[0]
    assert text.get_position()[0] > 0
    assert text.get_position()[1] == 0
    assert text.get_horizontalalignment() == "left"


@pytest.mark.parametrize("seed", [2, 6, 7, 9])
def test_a_name_is_nearest_to_its_own_point(seed: int) -> None:
    """Points almost on top of each other: the name of one is not beside another."""
    random = np.random.default_rng(seed)
    upper, lower = 0.563 + 0.01 * random.normal(), 0.575 + 0.01 * random.normal()
    points = {"plain": (60, 0.51), "ffg-w": (1290, upper), "ffg-u": (1300, lower)}
    points["ensemble-u"] = (1200 + 100 * random.normal(), 0.585)
    with plots.theme():
        figure = Figure(figsize=(3.5, 2.75))
        ax = figure.subplots()
        for name, (x, y) in points.items():
            plots.tradeoff(ax, x, y, yerr=(y - 0.09, y + 0.1), label=name, log_x=True)
        figure.draw_without_rendering()
    anchors = {name: ax.transData.transform(point) for name, point in points.items()}
    for text in ax.texts:
        box = text.get_window_extent()
        away = {
            name: np.hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0))
            for name, (x, y) in anchors.items()
        }
        assert away[text.get_text()] <= min(away.values()) + 2, (text.get_text(), away)
