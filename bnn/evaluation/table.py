"""The pieces of an evaluation as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bnn.evaluation.pieces import OOD, Posterior, Scale, Severity, Size, Uncertainty
from bnn.metrics.bootstrap import Interval


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
    return text if size.parameters == size.plain else f"{text}, {size.ratio:.1%} of {one} {size.plain:,}"


def metric_lines(metrics: Mapping[str, Interval], temperature: float | None) -> list[str]:
    """The metrics with their intervals."""
    rows = [[name, f"{one.value:.4g}", f"[{one.low:.4g}, {one.high:.4g}]"] for name, one in metrics.items()]
    if temperature is not None:
        rows.append(["temperature", f"{temperature:.4g}", ""])
    return columns([["metric", "value", "95 % interval"], *rows])


def uncertainty_lines(inside: Uncertainty, ood: Mapping[str, OOD], unit: str) -> list[str]:
    """Mean uncertainties, in and out of distribution."""
    sets = {"in distribution": inside} | {name: one.uncertainty for name, one in ood.items()}
    rows = [[name, *(f"{v:.3g}" for v in (u.total, u.aleatoric, u.epistemic))] for name, u in sets.items()]
    return columns([[f"mean uncertainty ({unit})", "total", "aleatoric", "epistemic"], *rows])


def ood_lines(ood: Mapping[str, OOD]) -> list[str]:
    """How well every score tells every set from the test inputs."""
    rows = [
        [name, score, *(f"{found[metric].value:.4f}" for metric in ("auroc", "aupr", "fpr95"))]
        for name, one in ood.items()
        for score, found in one.detection.items()
    ]
    return columns([["out of distribution", "by", "auroc", "aupr", "fpr95"], *rows]) if rows else []


def corruption_lines(severities: Sequence[Severity]) -> list[str]:
    """Means over kinds, severity by severity."""
    if not severities:
        return []
    names = list(severities[0].metrics)
    rows = [
        [f"severity {one.severity}", str(one.kinds), f"{one.uncertainty.epistemic:.3g}"]
        + [f"{one.metrics[name]:.4g}" for name in names]
        for one in severities
    ]
    return columns([["corrupted", "kinds", "epistemic", *names], *rows])


def posterior_lines(posterior: Posterior | None) -> list[str]:
    """Where sds and lamda ended, over all layers."""
    if posterior is None:
        return []
    found = {"sd": posterior.sd, "lamda": posterior.lamda}
    rows = [_scale_row(name, scale) for name, scale in found.items() if scale is not None]
    return columns([["posterior", "mean", "largest", "of the cap", "at the cap"], *rows]) if rows else []


def _scale_row(name: str, scale: Scale) -> list[str]:
    shares = ["-" if value is None else f"{value:.1%}" for value in (scale.ratio, scale.at_cap)]
    return [f"{name} ({scale.count:,})", f"{scale.mean:.3g}", f"{scale.largest:.3g}", *shares]
