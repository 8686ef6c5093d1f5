"""The result of `bnn.evaluate`: everything measured, as plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bnn._common.atomic import write_atomically
from bnn._common.records import decoded, encoded
from bnn.evaluation import table
from bnn.evaluation.pieces import (
    OOD,
    Corrupted,
    Examples,
    Points,
    Posterior,
    Reliability,
    Selective,
    Severity,
    Size,
    Time,
    Uncertainty,
)
from bnn.evaluation.verdict import verdict
from bnn.metrics.bootstrap import Interval

FORMAT, FORMAT_VERSION = "bayesianize evaluation", 1


@dataclass(frozen=True)
class Evaluation:
    """What is known about a network on a data set. `print` shows it, `save` and `load` keep it as JSON.

    Args:
        data: the name of the data set.
        task: "classification" or "regression".
        inputs: how many were scored.
        draws: posterior draws behind every prediction; 1 for a plain network.
        seed: of the draws, the corruptions and the resamples.
        metrics: accuracy, nll, brier, ece, adaptive_ece, classwise_ece, aurc and, with validation data,
            nll_after_temperature; or rmse, nll, crps, coverage_50, sharpness_50, ... in the target's own units.
        temperature: learned on validation data.
        uncertainty: in distribution.
        ood: by the name of the set.
        corruptions: a row for each kind and severity.
        severities: means of these rows over kinds.
        selective, reliability: curves of class predictions.
        posterior: where sds and lamda ended; None for a plain network.
        size: parameters and bytes.
        notes: what was left out, and why.
        examples: the surest and the least sure test inputs.
        points: predictions against real targets.
        time: how long a prediction takes, where it was measured; two evaluations are equal whatever it says.
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
    time: Time | None = field(default=None, compare=False)

    @property
    def verdict(self) -> str:
        """Whether the draws disagree, and more so out of distribution: what tells uncertainty from shrinkage."""
        return verdict(self.task, self.draws, self.uncertainty, self.ood)

    def table(self) -> str:
        """A summary in plain text."""
        passes = "1 pass" if self.draws == 1 else f"{self.draws} draws"
        unit = "nats" if self.task == "classification" else "variance, own units"
        blocks = [
            [f"{self.data}: {self.task}, {self.inputs:,} inputs, {passes}", table.size_line(self.size)],
            table.metric_lines(self.metrics, self.temperature),
            table.uncertainty_lines(self.uncertainty, self.ood, unit),
            table.ood_lines(self.ood),
            table.corruption_lines(self.severities),
            table.posterior_lines(self.posterior),
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
        if stored.get("format_version") != FORMAT_VERSION:
            version = stored.get("format_version")
            raise ValueError(f"this evaluation has format version {version!r}, this program reads {FORMAT_VERSION}")
        own = {name: value for name, value in stored.items() if name not in ("format", "format_version")}
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
