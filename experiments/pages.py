"""Writes docs/results.md, its pictures and those of the README from the case files and the results alone.

    python -m experiments.pages

A cell is the mean over runs that differ in nothing the table shows (seeds, say), with their standard deviation where
there are several. In the text of a case, `{net=mlp fraction=0.25 start=plain: accuracy}` stands for that figure,
`paired_accuracy` for its difference to the baseline. A picture with a `readme` text stands in the README, too, between
`<!-- name of the case -->` and `<!-- end -->`.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import re
import statistics
from collections.abc import Sequence
from typing import Any

from bnn.metrics.written import figures
from experiments.case import CASES, RESULTS, Case
from experiments.pictures import PICTURES
from experiments.records import Records

DOCS = CASES.parents[1] / "docs"
ADVICE = CASES.parent / "advice.md"  # what stands above all cases
PERCENT = {"accuracy", "accuracy_first_half", "ece", "share", "coverage_50", "coverage_80", "coverage_90"}
OWN_UNITS = {"rmse", "crps", "width_90"}  # numbers of any size
WHOLE = {"parameters", "bytes", "effective_size"}
HEAD = """# Results

Rebuilt from `experiments/cases/*.toml` and `experiments/results/*.json` by `python -m experiments.pages`; a test
compares them. Every record holds its settings, seed, versions and commit. Data sets are found through `BNN_DATA`,
networks trained for these tables through `BNN_NETS` (`python -m experiments.nets` trains them). A new table is a new
case file: [experiments/case.py](../experiments/case.py) says what is in it.
"""

Run = dict[str, Any]


def figure(metric: str, value: float, digits: int = 3) -> str:
    """A number as people read it; those of `OWN_UNITS` to so many significant digits.

    >>> figure("accuracy", 0.7635), figure("nll", 0.4), figure("parameters", 50_280), figure("rmse", 0.00123)
    ('76.4', '0.400', '50,280', '0.00123')
    """
    if metric in OWN_UNITS:
        return figures(value, digits)
    if metric in PERCENT:
        return f"{math.floor(1000 * value + 0.5 + 1e-7) / 10:.1f}"  # halves go up, and nothing is -0.0
    return f"{value:,.0f}" if metric in WHOLE else f"{value:.1f}" if "seconds" in metric else f"{value:.3f}"


def matching(runs: Sequence[Run], wanted: dict[str, Any]) -> list[Run]:
    """The runs with these settings; a run without an axis (an original network has no fraction) has all its values."""
    return [run for run in runs if all(run["settings"].get(axis, value) == value for axis, value in wanted.items())]


def cell(runs: Sequence[Run], metric: str) -> str:
    """The mean over runs, and the sd of several."""
    values = [run["metrics"][metric] for run in runs if run["metrics"].get(metric) is not None]
    if not values:
        return "-"
    spread = figure(metric, statistics.stdev(values), digits=2) if len(values) > 1 else ""
    return figure(metric, statistics.mean(values)) + (f" ± {spread}" if spread.strip("0.") else "")


def difference(runs: Sequence[Run], metric: str) -> str:
    """The paired difference to the baseline with its standard error; of one run."""
    found = [run["paired"][metric] for run in runs if metric in run.get("paired", {})]
    if len(found) != 1:
        return "-"
    value, error = found[0]
    return ("+" if value > 0 else "") + f"{figure(metric, value)} ± {figure(metric, error)}"


def table(case: Case, runs: Sequence[Run], spec: dict[str, Any], fixed: dict[str, Any]) -> list[str]:
    """A Markdown table: an axis down, an axis (of one metric) or several metrics across."""
    labels, rows, axis = spec.get("labels", {}), values_of(runs, spec["rows"]), spec.get("columns")
    across: list[tuple[dict[str, Any], str, str]] = [
        ({}, name, label) for name, label in spec.get("metrics", {}).items()
    ]
    if axis:
        across = [({axis: v}, spec["metric"], f"{v:.0%}" if isinstance(v, float) else v) for v in values_of(runs, axis)]
    lines = [f"| {' | '.join([spec.get('head', spec['rows']), *(label for *_, label in across)])} |"]
    lines.append("|---" * (1 + len(across)) + "|")
    for row in rows:
        here = [matching(runs, fixed | {spec["rows"]: row} | wanted) for wanted, *_ in across]
        cells = [cell(found, metric) for found, (_, metric, _) in zip(here, across, strict=True)]
        lines.append(f"| {' | '.join([labels.get(row, str(row)), *cells])} |")
        if row in spec.get("paired", []):
            cells = [difference(found, metric) for found, (_, metric, _) in zip(here, across, strict=True)]
            base = case.baseline[spec["rows"]]
            lines.append(f"| *{labels.get(row, row)}, less {labels.get(base, base)}* | {' | '.join(cells)} |")
    return lines


def named(value: Any, spec: dict[str, Any]) -> str:
    """A value of an axis as the heading of a table.

    >>> named(0.25, {}), named("mlp", {"labels": {"mlp": "MLP"}})
    ('25 %', 'MLP')
    """
    return f"{value:.0%}".replace("%", " %") if isinstance(value, float) else spec.get("labels", {}).get(value, value)


def values_of(runs: Sequence[Run], axis: str) -> list[Any]:
    """The values of an axis, in the order of the runs."""
    return list(dict.fromkeys(run["settings"][axis] for run in runs if axis in run["settings"]))


def filled(text: str, runs: dict[str, Run]) -> str:
    """The text with its figures."""

    def value(found: re.Match[str]) -> str:
        key, metric = found[1], found[2]
        here = [runs[key]] if key in runs else [run for name, run in runs.items() if _without_seed(name) == key]
        return difference(here, metric[7:]) if metric.startswith("paired_") else cell(here, metric)

    return re.sub(r"\{([^{}:]+): (\w+)\}", value, text)


def _without_seed(key: str) -> str:
    """The name that runs with different seeds share."""
    return re.sub(r" seed=\d+$", "", key)


def section(case: Case, runs: dict[str, Run]) -> list[str]:
    """One case: the question, the command, the tables, the picture, what they say and do not say."""
    lines = [f"## {case.title}", "", case.asks, "", "```bash", f"python -m experiments.run {case.name}", "```", ""]
    lines += [filled(case.measured.strip(), runs), ""]
    spec, every = case.table, list(runs.values())
    axes = [spec["tables"]] if isinstance(spec.get("tables"), str) else spec.get("tables", [])
    for values in itertools.product(*(values_of(every, axis) for axis in axes)):
        own = matching(every, dict(zip(axes, values, strict=True)))
        if not own:  # not every value goes with every other
            continue
        if axes:
            lines += [f"**{', '.join(named(value, spec) for value in values)}**", ""]
        lines += [*table(case, own, spec, {}), ""]
    lines += case.further_lines(every)
    if drawable(case, runs):
        lines += [f"![{case.title}](images/{picture_name(case)})", ""]
    lines += [filled(case.says.strip(), runs), "", f"Limits: {case.limits.strip()}", ""]
    missing = len(case.runs()) - len(runs)
    lines += [f"{missing} of {len(case.runs())} runs of this case are missing.", ""] if missing else []
    commits = sorted({run["commit"][:9] + ("-dirty" if run["commit"].endswith("-dirty") else "") for run in every})
    versions = sorted({", ".join(f"{name} {one}" for name, one in run["versions"].items()) for run in every})
    return [*lines, f"Runs of {', '.join(commits)} with {'; '.join(versions)}.", ""]


def drawable(case: Case, runs: dict[str, Run]) -> bool:
    """Whether the picture of a case can be drawn; one that needs all runs (`whole`) waits for the last."""
    return bool(case.picture) and (not case.picture.get("whole") or len(runs) == len(case.runs()))


def picture_name(case: Case) -> str:
    """The file of a case's picture, in docs/images."""
    return str(case.picture.get("file", f"results_{case.name}.png"))


def readme(text: str) -> str:
    """The README with the pictures that cases put there, and what is said below them; as it is, where runs miss."""
    for case, runs in cases():
        below = case.picture.get("readme", "") if drawable(case, runs) else ""
        if below or case.readme:
            picture = f"![{case.title}](docs/images/{picture_name(case)})\n\n" if below else ""
            shown = f"{picture}{filled((below or case.readme).strip(), runs)}\n"
            begin, end = f"<!-- {case.name} -->\n", "<!-- end -->"
            block = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
            if not block.search(text):
                raise ValueError(f"the README has no place for {case.name}: {begin.strip()} and {end}")
            text = block.sub(lambda _, whole=begin + shown + end: whole, text)
    return text


def cases(folder: pathlib.Path = RESULTS) -> list[tuple[Case, dict[str, Run]]]:
    """Every case that has results, in the order of names."""
    read = [Case.read(path) for path in sorted(CASES.glob("*.toml"))]
    found = [(case, Records(case, folder).done()) for case in read]
    return [(case, runs) for case, runs in found if runs]


def advice(text: str) -> str:
    """What all cases together come to, with figures looked up as {case/key: metric}."""
    known = {case.name: runs for case, runs in cases()}
    return re.sub(r"\{(\w+)/([^{}]+)\}", lambda m: filled(f"{{{m[2]}}}", known.get(m[1], {})), text)


def page() -> str:
    """The whole page."""
    lines = [HEAD, advice(ADVICE.read_text(encoding="utf-8"))]
    return "\n".join([*lines, *(line for case, runs in cases() for line in section(case, runs))]).rstrip() + "\n"


def main() -> None:
    for case, runs in cases():
        if drawable(case, runs):
            PICTURES[case.picture["kind"]](case, list(runs.values()), DOCS / "images" / picture_name(case))
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
    path = DOCS.parent / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
