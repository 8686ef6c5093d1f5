"""What the runs of the coverage case come to: all tables together, what was to be reached, and published figures."""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bnn.metrics.written import decimals, figures
from experiments.case import HERE, Case, toml

PUBLISHED = HERE / "published" / "uci.toml"
LEVELS = (50, 80, 90)  # percent
OURS, PLAIN, OTHER = "ffg-u", "plain", "mlp"
MEAN_GAP, LARGEST_GAP, MANY = 3.0, 6.0, 1000  # points, points, and of more rows than these
ERRORS = 2.0  # standard errors that an NLL may be above the plain network's

Run = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A method on one table, over its splits.

    Args:
        rows, tested: of the table, and of all its test parts together.
        coverage: {percent promised: percent found}.
        rmses: {split: RMSE}.
        nll_gap: the NLL less the plain network's, over all test rows, and its standard error; None for the plain one.
        varying: of how many splits, in how many the noise depends on the input.
    """

    rows: int
    tested: int
    coverage: dict[int, float]
    rmses: dict[int, float]
    nll: float
    nll_gap: tuple[float, float] | None
    splits: int
    varying: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Found:
        """That of the runs on the splits."""

        def mean(metric: str) -> float:
            return statistics.fmean(run["metrics"][metric] for run in runs)

        coverage = {level: 100 * mean(f"coverage_{level}") for level in LEVELS}
        varying = sum(int(run["metrics"].get("varying_noise", 0)) for run in runs)
        gap = pooled([run["paired"]["nll"] for run in runs if "paired" in run])
        rmses = {run["settings"]["seed"]: run["metrics"]["rmse"] for run in runs}
        tested = sum(run["metrics"]["test_rows"] for run in runs)
        return cls(runs[0]["metrics"]["rows"], tested, coverage, rmses, mean("nll"), gap, len(runs), varying)

    @property
    def rmse(self) -> float:
        """The mean over splits."""
        return statistics.fmean(self.rmses.values())

    def relative(self, other: Found) -> float:
        """The mean RMSE relative to another method's, over the splits that both have."""
        both = self.rmses.keys() & other.rmses.keys()
        return sum(self.rmses[i] for i in both) / sum(other.rmses[i] for i in both) if both else math.nan

    def gap(self, level: int) -> float:
        """Points that the intervals of a level cover too much, or too little."""
        return self.coverage[level] - level


def pooled(pairs: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The mean of differences and its standard error, from those of every split, as if they were independent.

    >>> pooled([(1.0, 0.3), (3.0, 0.4)])
    (2.0, 0.25)
    """
    if not pairs:
        return None
    return statistics.fmean(value for value, _ in pairs), math.hypot(*(error for _, error in pairs)) / len(pairs)


def by_set(runs: Sequence[Run], method: str) -> dict[str, Found]:
    """{table: what the method found}, in the order of the runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run["settings"]["method"] == method:
            groups.setdefault(run["settings"]["data"], []).append(run)
    return {name: Found.of(group) for name, group in groups.items()}


def mean_gap(found: dict[str, Found], level: int) -> float:
    """The mean over tables of how far coverage is from the promise, in points."""
    return statistics.fmean(abs(one.gap(level)) for one in found.values())


def chance_gap(found: dict[str, Found], level: int) -> float:
    """The mean gap to expect of intervals that are right: on n test rows it has the sd sqrt(p (1 - p) / n)."""
    p = level / 100
    sds = [100 * math.sqrt(p * (1 - p) / one.tested) for one in found.values()]
    return math.sqrt(2 / math.pi) * statistics.fmean(sds)  # E|z| of a normal z is sqrt(2 / pi) sds


def largest_gap(found: dict[str, Found], level: int) -> tuple[str, float]:
    """The table of more than `MANY` rows that is furthest from the promise, and by how many points."""
    large = {name: one.gap(level) for name, one in found.items() if one.rows > MANY}
    name = max(large, key=lambda one: abs(large[one]), default="")
    return name, large.get(name, 0.0)


def relative_rmse(found: dict[str, Found], other: dict[str, Found]) -> dict[str, float]:
    """{table: RMSE relative to that of another method}, where both have runs."""
    ratios = {name: one.relative(other[name]) for name, one in found.items() if name in other}
    return {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}


def worse(found: dict[str, Found]) -> list[str]:
    """The tables on which the NLL is above the plain network's by more than `ERRORS` standard errors."""
    return [name for name, one in found.items() if one.nll_gap and one.nll_gap[0] > ERRORS * one.nll_gap[1]]


def lines(case: Case, runs: Sequence[Run]) -> list[str]:
    """All of it, as Markdown."""
    labels = case.table.get("labels", {})
    parts = [together(runs, labels), verdicts(runs, labels), each(runs, labels), published(runs, labels)]
    return [line for part in parts for line in [*part, ""]]


def together(runs: Sequence[Run], labels: dict[str, str]) -> list[str]:
    """A row for each method: over all tables, how far its coverage is from the promise."""
    head = [text for level in LEVELS for text in (f"{level} %: mean gap, points", "largest")]
    out = [f"**All tables together** (largest: of those of more than {MANY:,} rows)", ""]
    out += markdown(["method", *head, "RMSE relative to scikit-learn's MLP"])
    others = by_set(runs, OTHER)
    for method in dict.fromkeys(run["settings"]["method"] for run in runs):
        found = by_set(runs, method)
        cells = [labels.get(method, method)]
        for level in LEVELS:
            name, gap = largest_gap(found, level)
            cells += [f"{mean_gap(found, level):.1f}", f"{gap:+.1f} ({labels.get(name, name)})" if name else "-"]
        ratios = relative_rmse(found, others).values()
        out.append(row([*cells, f"{statistics.geometric_mean(ratios):.3f}" if ratios else "-"]))
    found = by_set(runs, OURS)
    minutes = sum(run["metrics"]["training_seconds"] for run in runs) / 60
    chance = [text for level in LEVELS for text in (f"{chance_gap(found, level):.1f}" if found else "-", "-")]
    out.append(row(["*intervals that are right, by chance*", *chance, "-"]))
    return [*out, "", f"Training took {minutes:.0f} minutes of one processor in all, for {len(runs)} runs."]


def verdicts(runs: Sequence[Run], labels: dict[str, str]) -> list[str]:
    """What was to be reached by the defaults, what was found, and whether that is so."""
    found, others = by_set(runs, OURS), by_set(runs, OTHER)
    if not found:
        return []
    out = [f"**What was to be reached**, by {labels.get(OURS, OURS)} with the defaults", ""]
    out += markdown(["aim", "found", "verdict"])
    for level in LEVELS:
        gap, (name, largest) = mean_gap(found, level), largest_gap(found, level)
        aim = f"{level} % intervals: within {MEAN_GAP:g} points on average over all tables"
        out.append(row([aim, f"{gap:.1f} points", verdict(gap <= MEAN_GAP)]))
        far = [labels.get(key, key) for key, one in found.items() if beyond(one, level)]
        aim = f"{level} % intervals: within {LARGEST_GAP:g} points on every table of more than {MANY:,} rows"
        seen = f"missed on {', '.join(far)}" if far else f"at most {abs(largest):.1f} points ({labels.get(name, name)})"
        out.append(row([aim, seen, verdict(not far)]))
    behind = [labels.get(name, name) for name in worse(found)]
    aim = f"NLL nowhere above the plain network's by more than {ERRORS:g} standard errors"
    out.append(row([aim, f"above it on {', '.join(behind)}" if behind else "nowhere", verdict(not behind)]))
    ratios = relative_rmse(found, others)
    if ratios:
        aim, ratio = (
            "RMSE no worse than that of scikit-learn's MLP on average",
            statistics.geometric_mean(ratios.values()),
        )
        above = sum(one > 1 for one in ratios.values())
        seen = f"{ratio:.3f} times it (geometric mean over tables), above it on {above} of {len(ratios)}"
        out.append(row([aim, seen, verdict(ratio <= 1)]))
    return out


def beyond(found: Found, level: int) -> bool:
    """Whether a table is large, and its coverage further from the promise than it may be."""
    return found.rows > MANY and abs(found.gap(level)) > LARGEST_GAP


def verdict(reached: bool) -> str:
    return "met" if reached else "**missed**"


def each(runs: Sequence[Run], labels: dict[str, str]) -> list[str]:
    """A row for each table: rows, points too much or too little, NLL and RMSE beside others'."""
    found, others = by_set(runs, OURS), by_set(runs, OTHER)
    plain, promised, ratios = by_set(runs, PLAIN), by_set(runs, "guarantee"), relative_rmse(found, others)
    out = [f"**Table by table**: {labels.get(OURS, OURS)}, points covered too much or too little", ""]
    head = ["table", "rows", *(f"{level} %" for level in LEVELS), "plain: 90 %", "with the guarantee: 90 %"]
    head += ["NLL less the plain network's", "RMSE relative to the MLP's", "splits with noise that varies"]
    out += markdown(head)
    for name, one in found.items():
        cells = [labels.get(name, name), f"{one.rows:,}", *(f"{one.gap(level):+.1f}" for level in LEVELS)]
        cells += [f"{method[name].gap(90):+.1f}" if name in method else "-" for method in (plain, promised)]
        cells.append("-" if one.nll_gap is None else f"{one.nll_gap[0]:+.3f} ± {one.nll_gap[1]:.3f}")
        cells.append(f"{ratios[name]:.3f}" if name in ratios else "-")
        out.append(row([*cells, f"{one.varying} of {one.splits}"]))
    return out


def published(runs: Sequence[Run], labels: dict[str, str], path: pathlib.Path = PUBLISHED) -> list[str]:
    """RMSE and NLL on the UCI sets beside what papers report."""
    papers = list(toml(path).values())
    found = {name: one for name, one in by_set(runs, OURS).items() if any(name in paper["rmse"] for paper in papers)}
    if not found:
        return []
    names = [labels.get(OURS, OURS), *(paper["name"] for paper in papers)]
    out = ["**Beside published figures** (of 20 splits, 5 of protein; here the first five)", ""]
    out += markdown(["table", *(f"{metric}: {name}" for metric in ("RMSE", "NLL") for name in names)])
    for name, one in found.items():
        cells = [labels.get(name, name)]
        for metric, value in (("rmse", figures(one.rmse)), ("nll", decimals(one.nll))):
            cells += [value, *(pair(paper[metric].get(name)) for paper in papers)]
        out.append(row(cells))
    out += ["", *(f"- {paper['name']}: {paper['source']}; {paper['about']}; ± {paper['spread']}." for paper in papers)]
    return out


def pair(value: Sequence[float] | None) -> str:
    """A published figure, to the two places that sources print."""
    return "-" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def markdown(head: Sequence[str]) -> list[str]:
    return [row(head), "|---" * len(head) + "|"]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
