"""The inputs a network is most and least certain about, with their pictures."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bnn._common.extras import need
from bnn.data.dataset import Part
from bnn.data.tables.preparation import TablePreparation
from bnn.evaluation.coverage import target_names
from bnn.evaluation.pieces import Example, Examples, Points, Uncertainty
from bnn.evaluation.predictor import Array, Outputs
from bnn.metrics import written

MOST = 12  # examples of each kind
SIDE = 96  # pixels: larger pictures are shrunk
POINTS = 500


def examples(
    outputs: Outputs, part: Part, targets: Array | None, classes: tuple[str, ...], preparation: Any = None
) -> Examples:
    """The inputs of the smallest and of the largest total uncertainty; ties in the order of the part.

    Args:
        targets: labels (N,), or numbers in their own units (N, ...); None out of distribution.
        classes: names; empty where they have none.
        preparation: what read the inputs; of a table, the cells of every example are kept.
    """
    score = outputs.scores["entropy" if "entropy" in outputs.scores else "total"]
    order = np.argsort(score, kind="stable")
    most = min(MOST, max(1, len(order) // 2))

    def chosen(rows: Array) -> tuple[Example, ...]:
        found = (_example(int(row), outputs, part, targets, classes) for row in rows)
        if not isinstance(preparation, TablePreparation):
            return tuple(found)
        return tuple(replace(one, values=_cells(preparation, part.x[one.index])) for one in found)

    return Examples(chosen(order[:most]), chosen(order[::-1][:most]))


def _example(row: int, outputs: Outputs, part: Part, targets: Array | None, classes: tuple[str, ...]) -> Example:
    target = None if targets is None else targets[row]
    total, aleatoric, epistemic = (
        float(np.mean(values[row])) for values in (outputs.total, outputs.aleatoric, outputs.epistemic)
    )
    each: tuple[Uncertainty, ...] = ()
    if "max_prob" not in outputs.scores:
        total, aleatoric, epistemic = map(math.sqrt, (total, aleatoric, epistemic))
        if target_names(outputs.mean):
            sds = np.sqrt([outputs.total[row], outputs.aleatoric[row], outputs.epistemic[row]])  # (3, D)
            each = tuple(Uncertainty(*map(float, column)) for column in sds.T)
    mean = outputs.mean[row]
    if "max_prob" in outputs.scores:
        best = int(mean.argmax())
        prediction, probability = _name(best, classes), float(mean[best])
        truth = None if target is None else _name(int(target), classes)
    else:
        prediction, probability = _numbers(mean), None
        truth = None if target is None else _numbers(target)
    drawn = picture(part.x[row]) if isinstance(part.x, Tensor) else None
    return Example(row, truth, prediction, probability, total, aleatoric, epistemic, drawn, each=each)


def _cells(preparation: TablePreparation, features: Tensor) -> dict[str, str]:
    cells = preparation.cells(features)
    return {name: cell if isinstance(cell, str) else written.real(cell) for name, cell in cells.items()}


def _name(label: int, classes: tuple[str, ...]) -> str:
    return classes[label] if classes else str(label)


def _numbers(values: Array) -> str:
    return "; ".join("missing" if np.isnan(value) else written.real(float(value)) for value in np.ravel(values))


def picture(stored: Tensor) -> str | None:
    """A stored image, uint8 (1 or 3, H, W), as a PNG in base64; None for other inputs, or without pillow."""
    if stored.dtype != torch.uint8 or stored.ndim != 3 or stored.shape[0] not in (1, 3):
        return None
    try:
        images = need("PIL.Image", "data")
    except ImportError:
        return None
    pixels = _shrunk(stored).permute(1, 2, 0).squeeze(2).contiguous().cpu().numpy()
    buffer = io.BytesIO()
    images.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _shrunk(image: Tensor) -> Tensor:
    height, width = image.shape[1:]
    factor = SIDE / max(height, width)
    if factor >= 1:
        return image
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    return F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0].round().clamp(0, 255).byte()


def points(outputs: Outputs, targets: Array) -> Points:
    """Predictions against real targets, of the first output, at evenly chosen inputs where it is known."""
    n = len(targets)
    known = (~np.isnan(np.reshape(targets, (n, -1))[:, 0])).nonzero()[0]
    most = min(len(known), POINTS)
    rows = known[np.unique(np.linspace(0, len(known) - 1, most).round().astype(np.intp))]
    first = [np.reshape(part, (n, -1))[rows, 0] for part in (targets, outputs.mean, np.sqrt(outputs.total))]
    return Points(*(tuple(part.astype(np.float64).tolist()) for part in first))
