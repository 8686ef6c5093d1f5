"""Small inputs for every plot, and the list that drives the tests they share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bnn import plots
from bnn.plots.style import GUIDE

NAN = float("nan")
RELIABILITY = SimpleNamespace(
    probability=[NAN, 0.3, 0.6, 0.9], frequency=[NAN, 0.2, 0.7, 0.8], weights=[0, 0.1, 0.3, 0.6]
)
ROC = SimpleNamespace(false_positive=[0.0, 0.2, 1.0], true_positive=[0.0, 0.9, 1.0])
HISTOGRAM = SimpleNamespace(edges=[0.0, 0.5, 1.0, 2.0], inside=[6, 3, 1], outside=[0, 1, 3])
SELECTIVE = SimpleNamespace(coverage=[0.25, 0.5, 1.0], accuracy=[1.0, 0.95, 0.9])
RISK = SimpleNamespace(coverage=[0.5, 1.0], risk=[0.02, 0.05])
POINTS = SimpleNamespace(target=[1.0, 2.0, 4.0], mean=[1.5, 2.0, 3.0], sd=[0.5, 0.25, 1.0])
NONE: Any = SimpleNamespace(probability=[], frequency=[], weights=[], false_positive=[], true_positive=[])
NONE.coverage = NONE.accuracy = NONE.risk = []
NONE.target = NONE.mean = NONE.sd = [NAN]


class Plot(NamedTuple):
    """A plot of series: how to draw one, how to ask for nothing, how many guides it has."""

    id: str
    draw: Any  # (ax, **label and color)
    nothing: Any  # (ax)
    guides: int
    key: bool = True  # its labels are in a key


def _p(id: str, function: Any, args: tuple[Any, ...], empty: tuple[Any, ...], guides: int, **rest: Any) -> Plot:
    more = {key: value for key, value in rest.items() if key != "key"}
    return Plot(
        id,
        lambda ax, **how: function(ax, *args, **more, **how),
        lambda ax: function(ax, *empty, **more),
        guides,
        rest.get("key", True),
    )


LEVELS = ([0.5, 0.9], [0.6, 0.8], [0.5, 0.7], [0.7, 0.9])
SEVERITIES = ([1, 2, 3], [0.9, 0.8, 0.6], [0.8, 0.7, 0.5], [0.95, 0.9, 0.7])
SERIES = [
    _p("reliability", plots.reliability, (RELIABILITY,), (NONE,), 1),
    _p("interval_coverage", plots.interval_coverage, LEVELS, ([], []), 1),
    _p("roc", plots.roc, (ROC,), (NONE,), 1),
    _p("corruption_curve", plots.corruption_curve, SEVERITIES, ([1], [NAN]), 0, ylabel="accuracy"),
    _p("accuracy_coverage", plots.accuracy_coverage, (SELECTIVE,), (NONE,), 0),
    _p("risk_coverage", plots.risk_coverage, (RISK,), (NONE,), 0),
    _p("training_curve", plots.training_curve, ([1, 2, 3], [0.9, None, 0.4]), ([1, 2], [None, NAN]), 0, ylabel="nll"),
    _p("tradeoff", plots.tradeoff, (120.0, 0.9), (120.0, NAN), 0, xlabel="parameters", ylabel="accuracy", key=False),
    _p("predicted_against_true", plots.predicted_against_true, (POINTS,), (NONE,), 1),
]


def new_axes() -> Axes:
    """Axes of a figure that pyplot does not know."""
    return Figure().subplots()


def lines(ax: Axes) -> list[Line2D]:
    """The lines of the series."""
    return [line for line in ax.lines if line.get_label() != GUIDE]


def guides(ax: Axes) -> list[Line2D]:
    return [line for line in ax.lines if line.get_label() == GUIDE]


def ends(ax: Axes) -> list[list[list[float]]]:
    """The error bars: [[x, low], [x, high]] of each."""
    return [segment.tolist() for bars in ax.collections for segment in bars.get_segments()]  # type: ignore[attr-defined]


def ticks(axis: Any) -> list[str]:
    """What is written at the ticks within the limits."""
    low, high = sorted(axis.get_view_interval())
    at = [place for place in axis.get_majorticklocs() if low <= place <= high]
    return list(axis.get_major_formatter().format_ticks(at))


def draw_everything() -> list[Figure]:
    """One figure of each plot, with two series where it takes several."""
    figures = []
    for plot in SERIES:
        figure = Figure()
        ax = figure.subplots()
        plot.draw(ax, label="first")
        plot.draw(ax, label="second", color=plots.PALETTE[5])
        figures.append(figure)
    for draw in (
        lambda figure: plots.score_histogram(figure.subplots(), HISTOGRAM),
        lambda figure: plots.pictures(figure, [np.zeros((4, 4)), np.ones((4, 4, 3))], ["zero", "one"]),
        lambda figure: plots.training_curve(figure.subplots(), [1, 2], [1, 2], dashed=True, label="dashed"),
        lambda figure: plots.tradeoff(figure.subplots(), 1e5, 2.0, xerr=(1e3, 1e6), yerr=(1, 3), log_x=True, label="p"),
    ):
        figures.append(Figure())
        draw(figures[-1])
    return figures
