"""Are out-of-distribution inputs noticed? How scores are spread, and ROC curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bnn import plots
from bnn.evaluation.detection import EPISTEMIC, USUAL, words
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.report.comparison import sets
from bnn.report.sections.picture import Drawn, Picture, in_key, slug

SECTION = "ood"
XLABEL = {
    "entropy": "entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "total": "predicted sd (scaled target)",
    "epistemic": "epistemic sd (scaled target)",
}
CROWDED = 4  # more names than that would cover the curves


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """For every set the ROC curves of all runs by the usual score and by what the draws disagree; then how both spread.

    The score of the largest probability, which is much like the usual one, is in the table alone.
    """
    task = runs[0].evaluation.task
    seen = {name: [run for run in runs if name in run.evaluation.ood] for name in sets([r.evaluation for r in runs])}
    pairs = [(name, score) for name in seen for score in (USUAL[task], EPISTEMIC[task])]
    for name, score in pairs:
        curves = [run for run in seen[name] if score in run.evaluation.ood[name].roc]
        if curves:
            yield _roc(name, score, curves)
    for name, score in pairs:
        yield from _histograms(name, score, [r for r in seen[name] if score in r.evaluation.ood[name].histograms])


def _own(score: str) -> str:
    """The end of a key: the usual score needs none."""
    return "" if score in USUAL.values() else f"-{slug(score)}"


def _auroc(run: Drawn, name: str, score: str) -> Interval | None:
    return run.evaluation.ood[name].detection.get(score, {}).get("auroc")


def _roc(name: str, score: str, runs: Sequence[Drawn]) -> Picture:
    def draw(axes: Any) -> None:
        for run in runs:
            found = _auroc(run, name, score)
            value = None if found is None else found.value
            plots.roc(axes, run.evaluation.ood[name].roc[score], auroc=value, label=run.label, color=run.color)
        if len(runs) > CROWDED:
            axes.get_legend().set_loc("lower left")
            axes.get_legend().set_bbox_to_anchor((0, 1), axes.transAxes)

    how = (
        f"As the bar for raising an alarm is lowered, inputs of {name} are found (up) and test inputs are taken for "
        "them (across): the nearer the upper left corner the better, the diagonal is chance."
    )
    found = {run.name: _auroc(run, name, score) for run in runs}
    facts = ", ".join(f"{run}: AUROC {written.decimals(one.value)}" for run, one in found.items() if one is not None)
    return Picture(
        SECTION, f"roc-{slug(name)}{_own(score)}", f"Finding {name} by {words(score)}", how, facts, draw, overlaid=True
    )


def _histograms(name: str, score: str, runs: Sequence[Drawn]) -> Iterator[Picture]:
    """One for each run, all on the same scale; what the draws disagree, which differs by orders, on each one's own."""
    found = [run.evaluation.ood[name].histograms[score] for run in runs]
    left = min((one.edges[0] for one in found), default=0.0)
    right = max((one.edges[-1] for one in found), default=1.0)
    top = max((max(side) / max(sum(side), 1) for one in found for side in (one.inside, one.outside)), default=1.0)
    for run, one in zip(runs, found, strict=True):
        ends = (one.edges[0], one.edges[-1]) if score in EPISTEMIC.values() else (left, right)
        yield _histogram(name, score, run, (*ends, 1.05 * top))


def _histogram(name: str, score: str, run: Drawn, scale: tuple[float, float, float]) -> Picture:
    def draw(axes: Any) -> None:
        histogram = run.evaluation.ood[name].histograms[score]
        plots.score_histogram(axes, histogram, inside="test", outside=in_key(name), xlabel=XLABEL.get(score, score))
        left, right, top = scale
        axes.set(xlim=(left, right), ylim=(0, top))

    how = (
        f"The less the two shapes overlap, and the further to the right inputs of {name} lie, the better "
        f"{words(score)} tells them from test inputs."
    )
    found = _auroc(run, name, score)
    facts = "" if found is None else f"AUROC {written.decimals(found.value)}"
    key, title, panel = (
        f"histogram-{slug(name)}-{slug(run.name)}{_own(score)}",
        f"{run.name}: {words(score)} of {name}",
        f"{words(score)} of {name}",
    )
    return Picture(SECTION, key, title, how, facts, draw, panel=panel[:1].upper() + panel[1:], short=run.name)
