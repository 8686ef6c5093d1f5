"""Which score tells out-of-distribution inputs best: scores side by side as a table, and a verdict in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bnn.evaluation.pieces import OOD, Detection, RiskCoverage, Uncertainty
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.metrics.registry import Metric, metrics

Scores = Mapping[str, Mapping[str, Interval]]  # score -> metric -> interval

SCORES = {"classification": ("max_prob", "entropy", "mutual_information"), "regression": ("total", "epistemic")}
USUAL = {"classification": "entropy", "regression": "total"}  # the whole uncertainty
EPISTEMIC = {"classification": "mutual_information", "regression": "epistemic"}  # how much the draws disagree
WORDS = {
    "max_prob": "max probability",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "total": "total sd",
    "epistemic": "epistemic sd",
}
HARDLY = (
    1e-3  # nats of mutual information that tell of no disagreement; of real targets, its share of the total, squared
)
CLEARLY = 0.005  # AUROC: a smaller lead is no reason to change the score, however certain it is
FAILS = 0.6  # AUROC; chance is 0.5
NAMED = 3  # sets on which a score fails that a sentence names
LONGEST = 18  # letters of a set's name in the table of a terminal
MARKS = {"best": "*", "same": "~", "": " "}


def words(score: str) -> str:
    """What a score is called."""
    return WORDS.get(score, score.replace("_", " "))


def marks(found: Scores, behind: Scores, metric: Metric) -> dict[str, str]:
    """Of every score that has the metric: "best", "same" where it is not clearly worse than that, or "".

    Clearly is by the paired differences `behind`; where a file has none, by intervals that do not overlap.
    """
    there = {score: each[metric.name] for score, each in found.items() if metric.name in each}
    if len(there) < 2:
        return dict.fromkeys(there, "")
    best = min(there, key=lambda score: _rank(there[score].value, metric.better))
    return {score: _mark(score, best, there, behind, metric) for score in there}


def _mark(score: str, best: str, found: Mapping[str, Interval], behind: Scores, metric: Metric) -> str:
    if found[score].value == found[best].value:
        return "best"
    gap = behind.get(score, {}).get(metric.name)
    if gap is not None:
        return "" if gap.low > 0 else "same"
    return "same" if found[score].low <= found[best].high and found[best].low <= found[score].high else ""


def _rank(value: float, better: str | float) -> float:
    """Smaller is better."""
    if isinstance(better, float):
        return abs(value - better)
    return -value if better == "higher" else value


def averages(ood: Mapping[str, OOD], stored: Detection | None = None) -> Detection:
    """Means over sets: as they were measured, or, of older files, with the means of the ends as intervals.

    Those are too wide, for no two sets would be at the same end, and never too narrow.
    """
    if stored is not None or not ood:
        return stored or Detection({}, {})
    sets = list(ood.values())
    common = [score for score in sets[0].detection if all(score in one.detection for one in sets)]
    mean = {score: _mean([one.detection[score] for one in sets]) for score in common}
    return Detection(mean, dict(sets[0].behind) if len(sets) == 1 else {})


def _mean(found: Sequence[Mapping[str, Interval]]) -> dict[str, Interval]:
    names = [name for name in found[0] if all(name in one for one in found)]
    ends = {name: [[one[name].value, one[name].low, one[name].high] for one in found] for name in names}
    return {
        name: Interval(*(sum(part) / len(found) for part in zip(*each, strict=True))) for name, each in ends.items()
    }


# ---- the table -------------------------------------------------------------------------------------------------------


def ood_lines(task: str, ood: Mapping[str, OOD], stored: Detection | None) -> list[str]:
    """Rows are sets, and their mean; of every score three columns: at most 80 letters wide."""
    if not ood:
        return []
    measured = metrics("detection")
    scores = _scores(task, [one.detection for one in ood.values()])
    rows = {name: (one.detection, one.behind) for name, one in ood.items()}
    if len(ood) > 1:
        mean = averages(ood, stored)
        rows[f"mean of {len(ood)} sets"] = (mean.mean, mean.behind)
    width = max(len("out of distribution"[:LONGEST]), *(len(_short(name)) for name in rows))
    lines = [_line("out of", width, [words(score) for score in scores], len(measured))]
    names = "".join(f"{one.name:<6}" for one in measured)
    lines.append(_line("distribution", width, [names] * len(scores), len(measured)))
    for name, (found, behind) in rows.items():
        lines.append(_line(_short(name), width, [_cells(score, found, behind) for score in scores], len(measured)))
    return [*lines, "  * best score of a row, ~ not clearly worse"] if len(scores) > 1 else lines


def _scores(task: str, found: Sequence[Scores]) -> list[str]:
    """Those of the task, measured or not, and any others that were."""
    return list(dict.fromkeys([*SCORES.get(task, ()), *(score for one in found for score in one)]))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _line(name: str, width: int, groups: Sequence[str], columns: int) -> str:
    """A name, and a group of columns of 6 letters for each score."""
    return ("  " + "  ".join([name.ljust(width), *(group.ljust(6 * columns) for group in groups)])).rstrip()


def _cells(score: str, found: Scores, behind: Scores) -> str:
    """Value and mark of every metric, "-" where there is none."""
    each, texts = found.get(score, {}), []
    for one in metrics("detection"):
        mark = MARKS[marks(found, behind, one).get(score, "")]
        texts.append(f"{each[one.name].value:.3f}{mark}" if one.name in each else "-")
    return "".join(text.ljust(6) for text in texts)


# ---- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The score to use for telling out-of-distribution inputs, and why, in a sentence."""

    score: str
    why: str


def choice(
    task: str,
    draws: int,
    inside: Uncertainty,
    ood: Mapping[str, OOD],
    stored: Detection | None = None,
    each: Mapping[str, Uncertainty] | None = None,
) -> Choice | None:
    """The score of the highest AUROC, on average over sets; the usual one where none is clearly better.

    None where there are no sets, or none was scored. `each` is that of several real targets, on the test inputs.
    """
    average = averages(ood, stored)
    means = {score: each["auroc"] for score, each in average.mean.items() if "auroc" in each}
    if not means:
        return None
    amounts = (
        disagreement(task, inside, each),
        *(disagreement(task, one.uncertainty, one.by_target) for one in ood.values()),
    )
    reason, left_out = _of_draws(task, draws, max(amounts), means, average)
    means = {score: one for score, one in means.items() if score != left_out}
    score, why = _best(task, means, average, next(iter(ood)) if len(ood) == 1 else None)
    return Choice(score, f"{reason}{why}{_failures(score, ood)}")


def _of_draws(
    task: str,
    draws: int,
    most: float,
    means: Mapping[str, Interval],
    average: Detection,
) -> tuple[str, str]:
    """What is to be said of draws that do not, or hardly, disagree; and the score that is left out because of it.

    `most` is the largest disagreement of any set.
    """
    score = EPISTEMIC[task]
    if draws < 2:
        return f"one pass has no draws that could disagree, so {words(score)} is 0 and no score; ", score
    remedy = "this posterior adds nothing to one network; a Laplace posterior around its weights would; "
    if score not in means:
        return f"the draws agree up to rounding: {remedy}", score
    if most >= HARDLY:
        return "", ""
    amount = f"{most:.1g} nats" if task == "classification" else f"{written.percent(math.sqrt(most))} of the total sd"
    if _tied(means, average) == [score]:
        return f"the draws hardly disagree ({words(score)} {amount} at most), yet where they do tells much: ", ""
    return f"the draws hardly disagree ({words(score)} {amount} at most): {remedy}", score


def disagreement(task: str, one: Uncertainty, each: Mapping[str, Uncertainty] | None = None) -> float:
    """The epistemic uncertainty in nats; of real targets its share of the total, squared, of several the mean of these.

    >>> disagreement("regression", Uncertainty(5.0, 4.0, 3.0))
    0.36
    """
    if each:
        return sum(disagreement(task, own) for own in each.values()) / len(each)
    return one.epistemic if task == "classification" or one.total <= 0 else (one.epistemic / one.total) ** 2


def _tied(means: Mapping[str, Interval], average: Detection) -> list[str]:
    """The best score, and those that are not clearly worse."""
    auroc = next(one for one in metrics("detection") if one.name == "auroc")
    of = {score: {"auroc": one} for score, one in means.items()}
    best = max(means, key=lambda score: means[score].value)
    own = "auroc" in average.behind.get(best, {})  # behind a score that is left out here
    behind = {} if own else average.behind
    marked = marks(of, behind, auroc)
    return [s for s in means if marked[s] or s == best or means[best].value - means[s].value < CLEARLY]


def _best(task: str, means: Mapping[str, Interval], average: Detection, only: str | None) -> tuple[str, str]:
    """The score, and how it compares with the others; `only` is the name of the set if there is one alone."""
    best = max(means, key=lambda score: means[score].value)
    tied = _tied(means, average)
    what, mean = ("out-of-distribution inputs", " on average") if only is None else (only, "")
    others = [score for score in means if score not in tied]
    if len(means) == 1:
        return best, f"{words(best)} is the only score of {what}: AUROC {means[best].value:.3f}{mean}"
    if tied == [best]:
        rest = _and([f"{means[s].value:.3f} by {words(s)}" for s in sorted(others, key=lambda s: -means[s].value)])
        return best, f"{words(best)} tells {what} best: AUROC {means[best].value:.3f}{mean} against {rest}"
    chosen = USUAL[task] if USUAL[task] in tied else best
    values = _and([f"{means[s].value:.3f} by {words(s)}" for s in tied])
    if not others:
        text = f"no score tells {what} clearly better: AUROC{mean} {values}"
    else:
        rest = _and([f"{words(s)} ({means[s].value:.3f})" for s in others])
        text = f"AUROC{mean} {values} differ by no more than noise or {CLEARLY:g}, all above {rest}"
    return chosen, f"{text}; use {words(chosen)}{', the usual one' if chosen == USUAL[task] else ''}"


def _failures(score: str, ood: Mapping[str, OOD]) -> str:
    """The sets that the score hardly tells, worst first: means hide them."""
    found = {name: one.detection[score]["auroc"].value for name, one in ood.items()}
    bad = sorted((name for name, value in found.items() if value < FAILS), key=lambda name: found[name])
    if not bad:
        return ""
    named = [f"{name} (AUROC {found[name]:.3f}{_elsewhere(score, ood[name])})" for name in bad[:NAMED]]
    more = [f"{len(bad) - NAMED} more"] if len(bad) > NAMED else []
    return f"; it fails on {_and([*named, *more])}"


def _elsewhere(score: str, one: OOD) -> str:
    """A score that does not fail on a set, for the sentence about one that does."""
    others = {s: each["auroc"].value for s, each in one.detection.items() if s != score and "auroc" in each}
    best = max(others, key=lambda s: others[s], default=None)
    return "" if best is None or others[best] < FAILS else f", {words(best)} {others[best]:.3f}"


def abstaining(task: str, found: Mapping[str, RiskCoverage]) -> str | None:
    """By which uncertainty to abstain so that the answers that are left are the best, and why.

    It says nothing about out-of-distribution inputs: what is left unanswered there, `choice` tells.
    """
    if len(found) < 2:
        return None
    best = min(found, key=lambda kind: found[kind].area.value)
    other = next(kind for kind in found if kind != best)
    gap = found[other].behind
    rmse = "mean RMSE" if found[best].unit == "own" else "mean RMSE (in sds of each target)"
    what = rmse if task == "regression" else "mean error rate"

    def area(kind: str) -> str:
        return written.real(found[kind].area.value)

    values = f"{what} over all shares {area(best)} against {area(other)} by {other}"
    if gap is None or gap.low <= 0:
        return f"on test inputs abstaining by {best} is not clearly better: {values}; use total, the default"
    return f"on test inputs abstain by {best}: {values}"


def _and(parts: Sequence[str]) -> str:
    """Parts as an English list.

    >>> _and(["a", "b", "c"]), _and(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
