"""How training went, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bnn import plots
from bnn.metrics import written
from bnn.report.sections.picture import Drawn, Picture
from bnn.train.runs.folder import is_pretraining

SECTION = "training"
SHARE = "validation-accuracy"


class Quantity(NamedTuple):
    """Something that is written down every epoch."""

    key: str
    title: str
    ylabel: str
    value: Callable[[Mapping[str, Any]], Any]
    how: str


class Curve(NamedTuple):
    """One stage of one run."""

    epochs: list[float]
    values: list[float]
    dashed: bool


def _kl(epoch: Mapping[str, Any]) -> float | None:
    """Networks without a posterior have none."""
    parts = [epoch[name] for name in ("kl_u", "kl_lamda") if epoch.get(name) is not None]
    return sum(parts) if parts and sum(parts) > 0 else None


QUANTITIES = (
    Quantity(
        "validation-nll",
        "Validation NLL",
        "validation NLL",
        lambda epoch: epoch.get("validation_nll"),
        "The lower the better: where it rises while the data term still falls, the network has begun to learn by heart",
    ),
    Quantity(
        "validation-accuracy",
        "Validation accuracy",
        "validation accuracy",
        lambda epoch: epoch.get("validation_accuracy"),
        "The higher the better: a curve that still climbs at its end would have gained from more epochs",
    ),
    Quantity(
        "validation-rmse",
        "Validation RMSE",
        "validation RMSE",
        lambda epoch: epoch.get("validation_rmse"),
        "The lower the better: a curve that still falls at its end would have gained from more epochs",
    ),
    Quantity(
        "data-term",
        "Data term",
        "NLL on training data",
        lambda epoch: epoch.get("data"),
        "How badly the training data are explained, per input: it should fall, and level out at the end",
    ),
    Quantity(
        "kl",
        "KL",
        "KL per training input (nats)",
        _kl,
        "How far the posterior is from the prior, per training input and before it is weighted: it should settle",
    ),
)


def pictures(runs: Sequence[Drawn]) -> Iterator[Picture]:
    """One picture per quantity that any run has written down."""
    for quantity in QUANTITIES:
        found = [(run, curves) for run in runs if (curves := curves_of(run.entry.training, quantity))]
        if found:
            yield _picture(quantity, found)


def curves_of(training: Mapping[str, Sequence[Mapping[str, Any]]], quantity: Quantity) -> list[Curve]:
    """The stages of a run one after the other: what comes after pretraining begins where that ended."""
    before = max((len(epochs) for stage, epochs in training.items() if is_pretraining(stage)), default=0)
    curves = []
    for stage, epochs in training.items():
        start = 0 if is_pretraining(stage) else before
        points = [(start + i + 1.0, quantity.value(epoch)) for i, epoch in enumerate(epochs)]
        points = [(x, y) for x, y in points if isinstance(y, int | float) and math.isfinite(y)]
        if points:
            curves.append(Curve([x for x, _ in points], [float(y) for _, y in points], is_pretraining(stage)))
    return curves


def _picture(quantity: Quantity, found: Sequence[tuple[Drawn, list[Curve]]]) -> Picture:
    def draw(axes: Any) -> None:
        for run, curves in found:
            labelled = next((i for i, curve in enumerate(curves) if not curve.dashed), 0)
            for i, curve in enumerate(curves):
                style: dict[str, Any] = {
                    "label": run.label if i == labelled else None,
                    "color": run.color,
                    "dashed": curve.dashed,
                }
                plots.training_curve(
                    axes, curve.epochs, curve.values, ylabel=quantity.ylabel, percent=quantity.key == SHARE, **style
                )

    dashed = any(curve.dashed for _, curves in found for curve in curves)
    units = next((run.entry.units for run, _ in found if run.entry.units), "")
    other = f"; RMSEs are {units}" if units and quantity.key == "validation-rmse" else ""
    how = f"{quantity.how}{'; dashed is the plain training before the conversion' if dashed else ''}{other}."
    facts = ", ".join(f"{run.name} ends at {written.figures(curves[-1].values[-1])}" for run, curves in found)
    return Picture(SECTION, f"training-{quantity.key}", quantity.title, how, facts, draw, overlaid=True)
