"""The pictures of a results page, in the house style."""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bnn.plots import style
from experiments.bands import bands
from experiments.case import Case
from experiments.promises import promises

Run = dict[str, Any]


def curves(case: Case, runs: Sequence[Run], path: pathlib.Path) -> None:
    """A panel for each value of one axis, a line for each of another: a metric against a third; guides for the rest."""
    from matplotlib.figure import Figure

    spec = case.picture
    panels = list(dict.fromkeys(run["settings"][spec["panels"]] for run in runs))
    columns = min(3, len(panels))
    with style.theme():
        figure = Figure(figsize=(3.0 * columns, 2.6 * math.ceil(len(panels) / columns) + 0.4))
        axes = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False).flatten()
        for ax, panel in zip(axes, panels, strict=False):
            _panel(ax, case, [run for run in runs if run["settings"][spec["panels"]] == panel])
            ax.set_title(_labels(case).get(panel, panel))
        for ax in axes[len(panels) :]:
            ax.remove()
        shown = {label: one for ax in axes for one, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        ordered = [label for label in [*map(_labels(case).get, spec["order"], spec["order"]), *shown] if label in shown]
        ordered = list(dict.fromkeys(ordered))
        figure.legend([shown[label] for label in ordered], ordered, loc="outside upper center", ncols=4)
        figure.savefig(path, metadata={"Software": None})


def _labels(case: Case) -> dict[str, str]:
    return case.table.get("labels", {})


def _panel(ax: Any, case: Case, runs: Sequence[Run]) -> None:
    spec = case.picture
    labels, lines = _labels(case), spec["order"]
    for run in runs:
        if spec["x"] not in run["settings"]:
            name = run["settings"][spec["lines"]]
            look: dict[str, Any] = {"color": style.INK, "linestyle": (0, (4, 3)), "linewidth": 0.9, "zorder": 1.5}
            ax.axhline(run["metrics"][spec["y"]], label=labels.get(name, name), **look)
    for i, line in enumerate(lines):
        points = sorted(
            (run["settings"][spec["x"]], run["metrics"][spec["y"]])
            for run in runs
            if run["settings"][spec["lines"]] == line and spec["x"] in run["settings"]
        )
        if points:
            ax.plot(*zip(*points, strict=True), label=labels.get(line, line), **style.series(i))
    low, high = ax.get_ylim()
    more = max(0.0, spec.get("least_span", 0.0) - (high - low)) / 2  # differences of noise should not look large
    ax.set_ylim(low - more, high + more)
    style.percent_ticks(ax.xaxis)
    style.percent_ticks(ax.yaxis)
    ax.set_xlabel(spec["x_label"])
    ax.set_ylabel(spec["y_label"])


def tradeoffs(case: Case, runs: Sequence[Run], path: pathlib.Path) -> None:
    """A row of axes for each value of an axis (`panels`), or one; in it a price against each of several qualities.

    The picture's `y` names the qualities and their headings, `points` the settings that are shown and their names; a
    point is the mean over all its runs.
    """
    from matplotlib.figure import Figure

    from bnn.plots.tradeoff import settle, tradeoff

    spec = case.picture
    axis = spec.get("panels")
    panels = list(dict.fromkeys(run["settings"][axis] for run in runs)) if axis else [None]
    with style.theme():
        figure = Figure(figsize=(4.6 * len(spec["y"]), 3.6 * len(panels)))
        grid = figure.subplots(len(panels), len(spec["y"]), squeeze=False)
        for axes, panel in zip(grid, panels, strict=True):
            here = [run for run in runs if panel is None or run["settings"][axis] == panel]
            for ax, (metric, title) in zip(axes, spec["y"].items(), strict=True):
                for i, (row, label) in enumerate(spec["points"].items()):
                    look = {name: style.series(i)[name] for name in ("color", "marker")}
                    about: dict[str, Any] = {"label": label, "xlabel": spec["x_label"], "ylabel": title, "log_x": True}
                    for share, point in _by_share(here, row, spec["x"], metric).items():
                        tradeoff(ax, share, point, **about, **look)
                if panel is not None:
                    ax.set_title(_labels(case).get(panel, panel))
        figure.draw_without_rendering()
        for ax in grid.flatten():
            settle(ax)
        figure.savefig(path, metadata={"Software": None})


def _by_share(runs: Sequence[Run], row: str, x: str, y: str) -> dict[float, float]:
    """Mean x and mean y of a row, for each fraction of the parameters that it was given."""
    own = [run for run in runs if run["settings"]["row"] == row and y in run["metrics"]]
    groups: dict[Any, list[Run]] = {}
    for run in own:
        groups.setdefault(run["settings"].get("fraction"), []).append(run)
    mean = statistics.fmean
    return {
        mean(run["metrics"][x] for run in group): mean(run["metrics"][y] for run in group) for group in groups.values()
    }


PICTURES: dict[str, Callable[[Case, Sequence[Run], pathlib.Path], None]] = {
    "bands": bands,
    "curves": curves,
    "promises": promises,
    "tradeoffs": tradeoffs,
}
