"""Evaluations that older versions have stored, read as those of today."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

UNCERTAINTIES = ("total", "aleatoric", "epistemic")
SCORES = ("total", "epistemic")  # of real targets


def with_sds(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored evaluation of format version 1, whose uncertainties of real targets are variances, with their roots."""
    if stored.get("task") != "regression":
        return dict(stored)
    found: dict[str, Any] = _rooted(stored)
    for one in found.get("ood", {}).values():
        for score in SCORES:
            if score in one.get("histograms", {}):
                histogram = one["histograms"][score]
                histogram["edges"] = [math.sqrt(edge) for edge in histogram["edges"]]
    return found


def _rooted(value: Any) -> Any:
    """A copy, in which everything that has a total, an aleatoric and an epistemic part has roots of them."""
    if isinstance(value, list | tuple):
        return [_rooted(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _rooted(one) for name, one in value.items()}
    if all(isinstance(found.get(name), int | float) for name in UNCERTAINTIES):
        found |= {name: math.sqrt(max(found[name], 0.0)) for name in UNCERTAINTIES}
    return found
