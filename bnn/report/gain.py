"""What was gained, for which parameters and time: the smallest run against the plain network, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bnn.evaluation import Evaluation
from bnn.evaluation.detection import words
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval
from bnn.metrics.registry import shown
from bnn.report.comparison import Cell, cell_of, is_plain, mean_auroc, measured, sets
from bnn.report.entry import Entry
from bnn.report.summary import Name, Sentence, listing

QUALITY = ("accuracy", "rmse", "nll")  # the metrics that a sentence names
FEW_SETS = 3  # of out-of-distribution inputs that it names
HIGHER, UNCLEAR = "higher", "no clear difference"
ALL = {
    UNCLEAR: "no clear difference in any of these",
    "better": "all of these are better",
    "worse": "all of these are worse",
}


class Against(NamedTuple):
    """A number of a run, and that of the plain network."""

    own: Cell
    plain: Cell
    better: str | float

    @property
    def verdict(self) -> str:
        """Better or worse where the 95 % intervals do not overlap."""
        assert self.own.value is not None
        assert self.plain.value is not None
        if None in (self.own.low, self.own.high, self.plain.low, self.plain.high):
            return UNCLEAR
        above = (self.own.low or 0.0) > (self.plain.high or 0.0)
        below = (self.own.high or 0.0) < (self.plain.low or 0.0)
        if not above and not below:
            return UNCLEAR
        return "better" if above == (self.better == HIGHER) else "worse"


def gain(entries: Sequence[Entry]) -> list[Sentence]:
    """The smallest run of several draws against the plain network: parameters, time, accuracy (or RMSE), NLL, AUROC.

    What differs by less than the 95 % intervals allow is called no clear difference. Each run tells out-of-distribution
    inputs by the score that its own verdict recommends, on the mean over the sets that both have seen. Where there is a
    run of more parameters than the plain network, a second sentence gives its numbers: that is what they could cost.

    Empty where there is no plain network of the same architecture, or nothing to compare with it.
    """
    others = [one for one in entries if one.evaluation.draws > 1]
    for own in sorted(others, key=lambda one: one.evaluation.size.parameters):
        plain = baseline(entries, own.evaluation)
        if plain is not None:
            large = max(others, key=lambda one: one.evaluation.size.parameters)
            more = large is not own and large.evaluation.size.parameters > plain.evaluation.size.parameters
            return [_against(own, plain), *([_reference(large, plain)] if more else [])]
    return []


def baseline(entries: Sequence[Entry], run: Evaluation) -> Entry | None:
    """The plain network that `run` was made of, by its size; of several the one of the best NLL."""
    plain = [
        one
        for one in entries
        if is_plain(one.evaluation)
        and one.evaluation.size.plain == run.size.plain
        and (one.evaluation.data, one.evaluation.task) == (run.data, run.task)
    ]
    return min(plain, key=lambda one: _value(one.evaluation.metrics.get("nll")), default=None)


def _value(found: Interval | None) -> float:
    return float("inf") if found is None else found.value


def _against(own: Entry, plain: Entry) -> Sentence:
    found = [(f"{title} {one.own.text} against {one.plain.text}", one.verdict) for title, one in _measured(own, plain)]
    seen = _detection(own, plain)
    if seen is not None:
        one, names, scores = seen
        mine, other = (words(score) for score in scores)
        by = f"{one.own.text} by {mine} against {one.plain.text} by {other}"
        if mine == other:
            by = f"{one.own.text} against {one.plain.text}, both by {mine}"
        found.append((f"AUROC on {names} {by}", one.verdict))
    start = [Name(own.name), f" takes {_cost(own.evaluation)} of the plain network ("]
    return [*start, Name(plain.name), "): " if found else ")", *_told(found), "."]


def _told(found: Sequence[tuple[str, str]]) -> Sentence:
    """Numbers with their verdicts, which are said once where all are the same."""
    verdicts = {verdict for _, verdict in found}
    if len(found) < 2 or len(verdicts) > 1:
        return listing([f"{text} ({verdict})" for text, verdict in found])
    return [*listing([text for text, _ in found]), f"; {ALL[verdicts.pop()]}"]


def _reference(large: Entry, plain: Entry) -> Sentence:
    """The numbers of a run that costs more than the plain network."""
    found = [f"{title} {one.own.text}" for title, one in _measured(large, plain)]
    seen = _detection(large, plain)
    if seen is not None:
        found.append(f"AUROC {seen[0].own.text} by {words(seen[2][0])}")
    reached = [", reaches ", *listing(found)] if found else []
    return [Name(large.name), f", at {_cost(large.evaluation)}", *reached, "."]


def _cost(run: Evaluation) -> str:
    """Shares of the plain network's parameters and time."""
    size = f"{written.percent(run.size.ratio, 0)} of the parameters"
    if run.time is None or not run.time.plain or is_plain(run):
        return size
    return f"{size} and {written.figures(run.time.seconds / run.time.plain, 2)} times the time per prediction"


def _measured(own: Entry, plain: Entry) -> list[tuple[str, Against]]:
    """The metrics that both have."""
    found = []
    for one in shown(own.evaluation.task):
        if one.name not in QUALITY:
            continue
        for _, title, intervals in measured(one, [own.evaluation, plain.evaluation]):
            cells = [cell_of(each, written.FORMATS[one.format]) for each in intervals]
            if all(cell.value is not None for cell in cells):
                found.append((title, Against(cells[0], cells[1], one.better)))
    return found


def _detection(own: Entry, plain: Entry) -> tuple[Against, str, list[str]] | None:
    """The AUROC on the sets that both have seen, what these are called, and by which scores."""
    runs = [own.evaluation, plain.evaluation]
    common = [name for name in sets(runs) if all(name in run.ood for run in runs)]
    choices = [run.ood_choice for run in runs]
    scores = [one.score for one in choices if one is not None]
    if not common or len(scores) < len(runs):
        return None
    cells = [cell_of(mean_auroc(run, common, score), written.decimals) for run, score in zip(runs, scores, strict=True)]
    if any(cell.value is None for cell in cells):
        return None
    few = "".join(listing(common)) if len(common) <= FEW_SETS else f"{len(common)} sets of out-of-distribution inputs"
    return Against(cells[0], cells[1], HIGHER), few, scores
