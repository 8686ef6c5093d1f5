"""The picture of coverage: what intervals promise and what is found, table by table."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from bnn.plots import style
from experiments.case import Case
from experiments.coverage_verdicts import LARGEST_GAP, LEVELS, MEAN_GAP, by_set

Run = dict[str, Any]
SHIFT = 0.22  # of methods, so that their marks do not lie on each other


def promises(case: Case, runs: Sequence[Run], path: pathlib.Path) -> None:
    """A panel for each level: tables down, the coverage of the picture's `methods` across, the promise as a line.

    The bands are what was to be reached: on average, and on every large table.
    """
    from matplotlib.figure import Figure

    labels = case.table.get("labels", {})
    found = {method: by_set(runs, method) for method in case.picture["methods"]}
    tables = list(dict.fromkeys(name for one in found.values() for name in one))
    with style.theme():
        figure = Figure(figsize=(9.0, 0.27 * len(tables) + 1.2))
        axes = figure.subplots(1, len(LEVELS), sharey=True)
        for ax, level in zip(axes, LEVELS, strict=True):
            for width, alpha in ((LARGEST_GAP, 0.22), (MEAN_GAP, 0.3)):
                ax.axvspan(level - width, level + width, color=style.FAINT, alpha=alpha, linewidth=0, zorder=0)
            ax.axvline(level, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            for i, (method, one) in enumerate(found.items()):
                places = [tables.index(name) + SHIFT * (i - (len(found) - 1) / 2) for name in one]
                look = {name: style.series(i)[name] for name in ("color", "marker")}
                shown = [each.coverage[level] for each in one.values()]
                ax.plot(shown, places, linestyle="none", label=labels.get(method, method), **look)
            ax.locator_params(axis="x", integer=True, nbins=6)
            ax.set_title(f"{level} % intervals")
            ax.set_xlabel("of test rows inside, %")
            ax.grid(axis="y", visible=False)
        axes[0].set_yticks(range(len(tables)), [labels.get(name, name) for name in tables])
        axes[0].set_ylim(len(tables) - 0.4, -0.6)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
        figure.savefig(path, metadata={"Software": None})
