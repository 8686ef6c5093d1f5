"""How a network does under corruptions of the test images: each kind and severity, and means over kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bnn._common.text import nearest
from bnn.data import CORRUPTIONS, corrupt
from bnn.data.corruptions import OF_COLOUR
from bnn.data.dataset import Part, tensors_in
from bnn.evaluation.pieces import Corrupted, Severity, Uncertainty

SEVERITIES = (1, 2, 3, 4, 5)


def chosen(corruptions: Any, kinds: Sequence[str] = CORRUPTIONS) -> list[tuple[str, int]]:
    """The (kind, severity) pairs that were asked for, each once; where no kind is named, of all `kinds`.

    >>> chosen({"fog": [1, 5], "snow": 3})
    [('fog', 1), ('fog', 5), ('snow', 3)]
    >>> len(chosen("all")), len(chosen([5])), len(chosen(["fog"])), chosen(None)
    (95, 19, 5, [])
    """
    if corruptions is None or corruptions is False:
        return []
    if corruptions is True or corruptions == "all":
        asked: Mapping[Any, Any] = dict.fromkeys(kinds, SEVERITIES)
    elif isinstance(corruptions, Mapping):
        asked = corruptions
    else:
        asked = _from_list(_listed(corruptions), kinds)
    pairs = dict.fromkeys((_kind(kind), _severity(one)) for kind, each in asked.items() for one in _listed(each))
    if not pairs:
        raise ValueError(f"corruptions={corruptions!r} asks for none: name kinds or severities, or leave it out")
    return list(pairs)


def _from_list(items: list[Any], kinds: Sequence[str]) -> dict[Any, Any]:
    """Kinds at all severities, or severities of all kinds."""
    if all(isinstance(one, str) for one in items):
        return dict.fromkeys(items, SEVERITIES)
    if not any(isinstance(one, str) for one in items):
        return dict.fromkeys(kinds, items)
    raise TypeError(f"a list of kinds or of severities, not both: got {items}; use a dict kind -> severities")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _kind(kind: Any) -> str:
    if kind in CORRUPTIONS:
        return str(kind)
    raise ValueError(f"unknown corruption {kind!r}{nearest(kind, CORRUPTIONS)}; expected some of {list(CORRUPTIONS)}")


def _severity(severity: Any) -> int:
    if severity in SEVERITIES and not isinstance(severity, bool):
        return int(severity)
    raise ValueError(f"a severity must be one of {list(SEVERITIES)}, got {severity!r}")


def kinds_for(part: Part) -> tuple[str, ...]:
    """All kinds that these inputs can have: grey images lack those of colour."""
    x = tensors_in(part.x)[0]
    grey = x.ndim == 4 and x.shape[1] == 1
    return tuple(kind for kind in CORRUPTIONS if not (grey and kind in OF_COLOUR))


def check_images(part: Part, pairs: Iterable[tuple[str, int]]) -> None:
    """Raises unless the inputs can be corrupted so: images as stored, before they are scaled."""
    x, *others = tensors_in(part.x)
    if others or x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ValueError(
            "corruptions need images as they are stored, uint8 (N, 1 or 3, H, W), and a Part with the `prepare` that "
            f"scales them; these inputs are {x.dtype} {tuple(x.shape)}: leave corruptions= out"
        )
    if colour := sorted({kind for kind, _ in pairs} - set(kinds_for(part))):
        raise ValueError(f"corruptions {colour} change colours, and these images are grey: leave them out")


def corruption(kind: str, severity: int, seed: int) -> partial[Tensor]:
    """The function (images, place of the first) -> corrupted images."""
    return partial(_corrupted, kind=kind, severity=severity, seed=seed)


def _corrupted(images: Tensor, start: int, *, kind: str, severity: int, seed: int) -> Tensor:
    return corrupt(images, kind, severity, seed, start=start)


def by_severity(rows: Iterable[Corrupted]) -> tuple[Severity, ...]:
    """Means over kinds, severity by severity."""
    groups: dict[int, list[Corrupted]] = {}
    for row in rows:
        groups.setdefault(row.severity, []).append(row)
    return tuple(_mean(severity, groups[severity]) for severity in sorted(groups))


def _mean(severity: int, rows: list[Corrupted]) -> Severity:
    n = len(rows)
    metrics = {name: sum(row.metrics[name].value for row in rows) / n for name in rows[0].metrics}
    parts = (sum(getattr(row.uncertainty, name) for row in rows) / n for name in ("total", "aleatoric", "epistemic"))
    return Severity(severity, n, metrics, Uncertainty(*parts))
