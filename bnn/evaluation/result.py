"""The result of `bnn.evaluate`: everything measured, as plain data, with a verdict and a table in plain text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bnn._common.atomic import write_atomically
from bnn._common.records import decoded, encoded
from bnn.evaluation.classes import class_rows, said, shown_results
from bnn.evaluation.detection import HARDLY, Choice, abstaining, choice, disagreement, ood_lines
from bnn.evaluation.guaranteed_classes import class_coverage_rows
from bnn.evaluation.older import with_sds
from bnn.evaluation.pieces import (
    OOD,
    Classes,
    Corrupted,
    Coverage,
    Detection,
    Examples,
    Guaranteed,
    Points,
    Posterior,
    Reliability,
    RiskCoverage,
    Scale,
    Selective,
    Severity,
    Size,
    TargetScores,
    Time,
    Uncertainty,
)
from bnn.evaluation.promise import Promise
from bnn.metrics import written
from bnn.metrics.bootstrap import Interval

FORMAT, FORMAT_VERSION = "bayesianize evaluation", 2
VARIANCES = 1  # the version whose uncertainties of real targets are variances


@dataclass(frozen=True)
class Evaluation:
    """What is known about a network on a data set. `print` shows it, `save` and `load` keep it as JSON.

    Args:
        data: the name of the data set.
        task: "classification" or "regression".
        inputs: how many were scored.
        draws: posterior draws behind every prediction; 1 for a plain network.
        seed: of the draws, the corruptions and the resamples.
        metrics: all that are registered for the task: accuracy, nll, brier, ece, ..., or rmse, nll, crps, coverage_50,
            sharpness_50, ... in the target's own units.
        temperature: the one that validation data ask for, of these predictions.
        uncertainty: in distribution.
        ood: by the name of the set.
        corruptions: a row for each kind and severity.
        severities: means of these rows over kinds.
        selective, reliability: curves of class predictions.
        posterior: where sds and lamda ended; None for a plain network.
        size: parameters and bytes.
        notes: what was left out, and why.
        examples: the most and the least certain test inputs.
        points: predictions against real targets.
        network_temperature: what the predictions divided logits by already (`bnn.calibrate_`); 1 where nothing was.
        time: how long a prediction takes, where it was measured; two evaluations are equal whatever it says.
        detection: scores side by side on the mean over all sets of `ood`; None without one, and in older files.
        risk_coverage: what abstaining by "total" and by "epistemic" uncertainty gains; the latter where the draws
            disagree. Empty in older files.
        targets: names of the real targets, where they have some.
        by_target: of several real targets, how well each is predicted, by its name or its number, over the inputs where
            it is known; `metrics` and `uncertainty` are over all of them, whatever their units.
        scale: "log" where positive targets were predicted on a log scale; everything here is in their own units.
        coverage: of the central intervals of real targets at 5, 10, ..., 95 %. Empty in older files.
        promise: whether intervals, or class probabilities, keep their promise. None in older files.
        guarantee: what a guarantee changes, where there is one.
        target: what a real target is called.
        classes: each class, and which is taken for which; None of real targets, and in older files.
    """

    data: str
    task: str
    inputs: int
    draws: int
    seed: int
    metrics: dict[str, Interval]
    temperature: float | None
    uncertainty: Uncertainty
    ood: dict[str, OOD]
    corruptions: tuple[Corrupted, ...]
    severities: tuple[Severity, ...]
    selective: Selective | None
    reliability: Reliability | None
    posterior: Posterior | None
    size: Size
    notes: tuple[str, ...] = ()
    examples: Examples | None = None
    points: Points | None = None
    network_temperature: float = 1.0
    time: Time | None = field(default=None, compare=False)
    detection: Detection | None = None
    risk_coverage: dict[str, RiskCoverage] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    by_target: dict[str, TargetScores] = field(default_factory=dict)
    scale: str = "linear"
    coverage: tuple[Coverage, ...] = ()
    promise: Promise | None = None
    guarantee: Guaranteed | None = None
    target: str | None = None
    classes: Classes | None = None

    @property
    def verdict(self) -> str:
        """Whether the draws disagree, and more so out of distribution: what tells uncertainty from shrinkage."""
        return verdict(self.task, self.draws, self.uncertainty, self.ood, self.unsure_by_target)

    @property
    def ood_choice(self) -> Choice | None:
        """Which score to use for telling out-of-distribution inputs, and why; None where there are none."""
        return choice(self.task, self.draws, self.uncertainty, self.ood, self.detection, self.unsure_by_target)

    @property
    def unsure_by_target(self) -> dict[str, Uncertainty]:
        """In distribution, of each of several real targets; empty in older files."""
        return {name: one.uncertainty for name, one in self.by_target.items() if one.uncertainty is not None}

    @property
    def abstaining(self) -> str | None:
        """By which uncertainty to abstain, total or epistemic, and why; None where only one was measured."""
        return abstaining(self.task, self.risk_coverage)

    @property
    def about_classes(self) -> list[str]:
        """Sentences about its classes: those that are never predicted, and what class weights do to probabilities."""
        return [] if self.classes is None else said(self.classes)

    def table(self) -> str:
        """A summary in plain text."""
        passes = "1 pass" if self.draws == 1 else f"{self.draws} draws"
        unit = "nats" if self.task == "classification" else "sd, own units"
        best = self.ood_choice
        blocks = [
            [
                f"{self.data}: {self.task}{of_target(self.target)}, {self.inputs:,} inputs, {passes}",
                size_line(self.size),
                *calibration_line(self.network_temperature),
            ],
            metric_lines(self.task, shared(self.task, self.metrics, self.by_target), self.temperature),
            *([] if self.promise is None else [[f"{promised_what(self.task)}: {self.promise}"]]),
            target_lines(self.by_target),
            guarantee_lines(self.task, self.guarantee),
            class_lines(self.classes),
            uncertainty_lines(self.uncertainty, self.ood, unit, self.unsure_by_target),
            [*ood_lines(self.task, self.ood, self.detection), *([] if best is None else [f"which score: {best.why}"])],
            corruption_lines(self.task, self.severities, several=bool(self.by_target)),
            posterior_lines(self.posterior),
            [f"verdict: {self.verdict}", *(f"note: {note}" for note in self.notes)],
        ]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """As JSON; numbers that are not finite (empty bins) are None."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **encoded(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Evaluation:
        """What `to_dict` gave."""
        if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
            raise ValueError(f"this is no evaluation: expected a dict with 'format': {FORMAT!r}, got {stored!r:.60}")
        version = stored.get("format_version")
        if version not in (VARIANCES, FORMAT_VERSION) or isinstance(version, bool):
            raise ValueError(
                f"this evaluation has format version {version!r}, this program reads {VARIANCES} to {FORMAT_VERSION}"
            )
        own = {name: value for name, value in stored.items() if name not in ("format", "format_version")}
        own = with_sds(own) if version == VARIANCES else own
        result: Evaluation = decoded(cls, own, "evaluation")
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; the file appears whole or not at all, and replaces an older one."""
        path = os.path.realpath(path)
        if not os.path.isdir(os.path.dirname(path)):
            raise FileNotFoundError(f"cannot write {path}: there is no such folder; create it first")
        if os.path.isdir(path):
            raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
        write_atomically((json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n").encode(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evaluation:
        """Reads what `save` wrote."""
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            return cls.from_dict(json.loads(text))
        except ValueError as error:
            raise ValueError(f"cannot read {os.fspath(path)}: {error}") from error


def verdict(
    task: str,
    draws: int,
    inside: Uncertainty,
    ood: Mapping[str, OOD],
    each: Mapping[str, Uncertainty] | None = None,
) -> str:
    """What the disagreement of the draws is worth; `each` is that of several real targets, in distribution.

    >>> verdict("classification", 1, Uncertainty(0.5, 0.5, 0.0), {})
    'one pass: there are no draws that could disagree, so none of the uncertainty is epistemic'
    """
    if draws < 2:
        return "one pass: there are no draws that could disagree, so none of the uncertainty is epistemic"
    classes = task == "classification"
    sets = [disagreement(task, one.uncertainty, one.by_target) for one in ood.values()]
    inner = disagreement(task, inside, each)
    outer = sum(sets) / len(sets) if sets else None
    place = "in distribution" if outer is None else "out of distribution"
    value = inner if outer is None else outer
    if value < HARDLY:
        gain = "any gain over the plain network is shrinkage, not uncertainty; a Laplace posterior would add some"
        return f"draws hardly disagree ({_amount(task, value)} {place}): {gain}"
    if outer is None:
        tells = "whether more so out of it, out-of-distribution inputs would tell"
        return f"draws disagree ({_amount(task, inner)} in distribution); {tells}"
    if classes:
        numbers = f"{inner:.2g} in, {outer:.2g} out (nats)"
    else:
        inner, outer = math.sqrt(inner), math.sqrt(outer)
        numbers = f"the epistemic sd is {_share(inner)} of the total sd in it, {_share(outer)} out of it"
    if outer <= inner:
        return f"draws disagree no more out of distribution than in it: {numbers}"
    return f"draws disagree {_times(outer, inner)} out of distribution: {numbers}"


def _amount(task: str, value: float) -> str:
    """The disagreement of the draws in words."""
    if task == "classification":
        return f"mutual information {value:.2g} nats"
    return f"the epistemic sd is {_share(math.sqrt(value))} of the total sd"


def _share(ratio: float) -> str:
    return written.percent(ratio, 0 if ratio >= 0.1 else 1)


def _times(outer: float, inner: float) -> str:
    return "more" if inner <= 0 else f"{outer / inner:.3g} times as much"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows of text in aligned columns.

    >>> columns([["a", "b"], ["long", "c"]])
    ['  a     b', '  long  c']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        (indent + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def size_line(size: Size) -> str:
    """Parameters and bytes."""
    networks = f" in {size.networks} networks" if size.networks > 1 else ""
    text = f"{size.parameters:,} parameters{networks}, {size.bytes:,} bytes"
    one = "one plain network's" if size.networks > 1 else "the plain network's"
    return text if size.parameters == size.plain else f"{text}, {written.percent(size.ratio)} of {one} {size.plain:,}"


def calibration_line(temperature: float) -> list[str]:
    """What a calibrated network divides its logits by; nothing for others."""
    return [] if temperature == 1 else [f"calibrated: logits are divided by T = {temperature:.4g}"]


def of_target(name: str | None) -> str:
    """The target's name, within a line."""
    return "" if name is None else f" of {name}"


def promised_what(task: str) -> str:
    """What promises something."""
    return "intervals" if task == "regression" else "probabilities"


def guarantee_lines(task: str, found: Guaranteed | None) -> list[str]:
    """Coverage and size before and after, and what is guaranteed; nothing where there is no guarantee."""
    if found is None:
        return []
    size = "width" if task == "regression" else "classes"
    header = ["guarantee: level", "own: holds", size, "guaranteed: holds", size]
    rows = _levels(found.before, found.after)
    if found.by_target:
        header = ["guarantee: target", "level", *header[1:]]
        rows = [[name, *row] for name, one in found.by_target.items() for row in _levels(one.before, one.after)]
    few = "" if found.statement else f"{found.rows:,} inputs set aside are too few for any of these levels"
    of_classes = class_coverage_rows(found)
    return [
        *columns([header, *rows], ""),
        found.statement or few,
        *(columns(of_classes, "") if of_classes else []),
    ]


def _levels(before: Sequence[Coverage], later: Sequence[Coverage]) -> list[list[str]]:
    """A row for every level."""
    after = {one.level: one for one in later}
    return [[written.percent(c.level, 0), *_held(c), *_held(after.get(c.level))] for c in before]


def _held(found: Coverage | None) -> list[str]:
    """Share and size as text."""
    return ["-", "-"] if found is None else [written.percent(found.covered.value), written.real(found.size)]


def shared(task: str, metrics: Mapping[str, Interval], by_target: Mapping[str, Any]) -> dict[str, Interval]:
    """Of several targets the metrics without units, which have one value for all; else all metrics."""
    return {name: one for name, one in metrics.items() if not (by_target and written.in_own_units(task, name))}


def metric_lines(task: str, metrics: Mapping[str, Interval], temperature: float | None) -> list[str]:
    """The metrics with their intervals."""
    rows = [
        [name, _text(task, name, one.value), f"[{_text(task, name, one.low)}, {_text(task, name, one.high)}]"]
        for name, one in metrics.items()
    ]
    if temperature is not None:
        rows.append(["temperature", f"{temperature:.4g}", ""])
    return columns([["metric", "value", "95 % interval"], *rows])


def _text(task: str, name: str, value: float) -> str:
    return written.percent(value) if written.is_share(task, name) else written.real(value)


def target_lines(by_target: Mapping[str, TargetScores]) -> list[str]:
    """A line for each of several targets, in its own units."""
    if not by_target:
        return []
    names = ["rmse", "nll", "crps", "coverage_50", "coverage_90", "sharpness_90"]
    names = [name for name in names if all(name in one.metrics for one in by_target.values())]
    rows = [
        [target, f"{one.inputs:,}", *(_text("regression", name, one.metrics[name].value) for name in names)]
        for target, one in by_target.items()
    ]
    return columns([["target", "inputs", *names], *rows])


def class_lines(found: Classes | None) -> list[str]:
    """How each class is answered, of many the worst; below the table who is never predicted."""
    if found is None:
        return []
    results = shown_results(found)
    left_out = len(results) < len(found.results)
    more = (
        [f"  ({len(results)} of {len(found.results):,} classes, those that are found least often)"] if left_out else []
    )
    return [*columns(class_rows(found, results)), *more, *said(found)]


def uncertainty_lines(
    inside: Uncertainty, ood: Mapping[str, OOD], unit: str, each: Mapping[str, Uncertainty]
) -> list[str]:
    """Mean uncertainties, in and out of distribution; of several targets, `each` of them by itself."""
    sets = {"in distribution": inside} | {name: one.uncertainty for name, one in ood.items()}
    if each:
        places = {"in distribution": each} | {name: one.by_target for name, one in ood.items()}
        sets = {f"{target}, {place}": one for place, found in places.items() for target, one in found.items()}
    rows = [[name, *map(written.figures, (u.total, u.aleatoric, u.epistemic))] for name, u in sets.items()]
    return columns([[f"mean uncertainty ({unit})", "total", "aleatoric", "epistemic"], *rows])


def corruption_lines(task: str, severities: Sequence[Severity], several: bool = False) -> list[str]:
    """Means over kinds, severity by severity; of several targets what has no units."""
    if not severities:
        return []
    names = [name for name in severities[0].metrics if not (several and written.in_own_units(task, name))]
    rows = [
        [f"severity {one.severity}", str(one.kinds)]
        + ([] if several else [written.figures(one.uncertainty.epistemic)])
        + [_text(task, name, one.metrics[name]) for name in names]
        for one in severities
    ]
    return columns([["corrupted", "kinds", *([] if several else ["epistemic"]), *names], *rows])


def posterior_lines(posterior: Posterior | None) -> list[str]:
    """Where sds and lamda ended, over all layers."""
    if posterior is None:
        return []
    found = {"sd": posterior.sd, "lamda": posterior.lamda}
    rows = [_scale_row(name, scale) for name, scale in found.items() if scale is not None]
    return columns([["posterior", "mean", "largest", "of the cap", "at the cap"], *rows]) if rows else []


def _scale_row(name: str, scale: Scale) -> list[str]:
    shares = ["-" if value is None else written.percent(value) for value in (scale.ratio, scale.at_cap)]
    return [f"{name} ({scale.count:,})", f"{scale.mean:.3g}", f"{scale.largest:.3g}", *shares]
