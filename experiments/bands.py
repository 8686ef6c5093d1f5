"""The picture and the table of the toy regression: every posterior's mean and sds, beside the exact one."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from bnn.plots import style
from experiments.case import Case
from experiments.two_clusters import EDGE, GRID, data, regions, truth

Metrics = Mapping[str, Any]
ROWS = (("NUTS", "FFG-W", "FCG-W"), ("FFG-U", "FCG-U", "Ensemble-U", "Laplace-U"))  # the place after NUTS's row is free
EXACT, OTHER, DATA = style.PALETTE[2], style.PALETTE[0], "#d1352b"
REGIONS = {"inside": (style.PALETTE[6], "s"), "between": (style.PALETTE[3], "o"), "outside": (style.PALETTE[1], "^")}


def bands(case: Case, runs: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """The picture of a case: the first run of every method."""
    found = {run["settings"]["method"]: run["metrics"] for run in reversed(runs)}
    draw(found, case.fixed["data_seed"], path)


def draw(found: Mapping[str, Metrics], seed: int, path: pathlib.Path) -> None:
    """Panels of posteriors, weights above and inducing weights below, and their sds by region in the free place."""
    from matplotlib.figure import Figure

    with style.theme():
        figure = Figure(figsize=(10.2, 4.7))
        axes = figure.subplots(2, 4)
        figure.get_layout_engine().set(w_pad=0.03, h_pad=0.05)
        for row, names in zip(axes, ROWS, strict=True):
            for ax, name in zip(row, names, strict=False):
                if name in found:
                    _panel(ax, name, found, seed)
                else:
                    ax.set_axis_off()
        _dots(axes[0, 3], found)
        shown = dict(zip(*reversed(axes[1, 0].get_legend_handles_labels()), strict=True))
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown))
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _panel(ax: Any, name: str, found: Mapping[str, Metrics], seed: int) -> None:
    """One posterior: mean, one to three sds, data, truth, and the exact posterior's two sds as lines."""
    x, own = GRID.numpy(), found[name]
    mean, sd = (_array(own[key]) for key in ("mean", "sd"))
    color = EXACT if name == "NUTS" else OTHER
    for k in (3, 2, 1):
        label = "mean, 1 to 3 sd" if k == 1 else None
        ax.fill_between(x, mean - k * sd, mean + k * sd, color=color, alpha=0.16, linewidth=0, label=label)
    ax.plot(x, mean, color=color, linewidth=1.5)
    if name != "NUTS" and "NUTS" in found:
        exact, width = (_array(found["NUTS"][key]) for key in ("mean", "sd"))
        for i, side in enumerate((-2, 2)):
            look: dict[str, Any] = {"color": EXACT, "linewidth": 1.0, "linestyle": (0, (1, 1.2))}
            ax.plot(x, exact + side * width, label="NUTS, 2 sd" if i else None, **look)
    ax.plot(x, truth(GRID), color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)), label="true function")
    inputs, targets = data(seed)
    ax.plot(inputs, targets, "o", color=DATA, markersize=2.4, markeredgewidth=0, alpha=0.7, label="data")
    ax.set(xlim=(-EDGE, EDGE), ylim=(-4, 4), xticks=(-1, 0, 1), yticks=(-4, -2, 0, 2, 4))
    ax.set_title(title(name, own))
    if not any(name == row[0] for row in ROWS):
        ax.set_yticklabels([])


def title(name: str, own: Metrics) -> str:
    """The name of a posterior with its parameters, or with its draws.

    >>> title("FFG-U", {"parameters": 2735})
    'FFG-U (2,735 parameters)'
    """
    return f"{name} ({own['parameters']:,} parameters)" if "parameters" in own else f"{name} (exact posterior)"


def _dots(ax: Any, found: Mapping[str, Metrics]) -> None:
    """The sd by region, method by method; a line at the exact one."""
    names = [name for row in ROWS for name in row if name in found]
    for region, (color, marker) in REGIONS.items():
        values = [found[name][f"sd_{region}"] for name in names]
        ax.plot(values, range(len(names)), marker, color=color, label=region)
        if "NUTS" in found:
            ax.axvline(found["NUTS"][f"sd_{region}"], color=color, linewidth=0.9, linestyle=(0, (3, 2)), zorder=1)
    ax.set(xscale="log", xlim=(0.0018, 1.2), yticks=range(len(names)), yticklabels=[])
    ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    for i, name in enumerate(names):  # inside, so that all panels are of one width
        ax.text(0.0021, i, name, va="center", fontsize="small")
    ax.invert_yaxis()
    ax.set_title("mean sd by region")
    legend = {"ncols": 3, "handletextpad": 0.1, "columnspacing": 0.8, "fontsize": "small"}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), **legend)
    ax.grid(axis="y", visible=False)


def _array(values: Any) -> Any:
    import numpy as np

    return np.asarray(values, dtype=float)


def table(found: Mapping[str, Metrics]) -> str:
    """The sd by region, and how much of the exact one it is."""
    exact = found.get("NUTS")
    lines = [f"{'':<12}{'parameters':>10}" + "".join(f"{region:>17}" for region in regions())]
    for name, own in found.items():
        cells = []
        for region in regions():
            sd = own[f"sd_{region}"]
            share = f" ({sd / exact[f'sd_{region}']:>5.0%})" if exact else ""
            cells.append(f"{f'{sd:.3f}{share}':>17}")
        lines.append(f"{name:<12}{own.get('parameters', ''):>10}" + "".join(cells))
    return "\n".join(lines)
