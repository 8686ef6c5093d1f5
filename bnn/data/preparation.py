"""Reading back what a model was trained to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bnn.data.array_sets.array_preparation import ArrayImages, ScaledInputs
from bnn.data.dataset import Preparation
from bnn.data.image_folders.folder_preparation import FolderPreparation
from bnn.data.scaling import ImageScaling
from bnn.data.tables.table import TablePreparation

KINDS: dict[str, Callable[[Mapping[str, Any]], Preparation]] = {
    "array_images": ArrayImages.from_dict,
    "arrays": ScaledInputs.from_dict,
    "folder": FolderPreparation.from_dict,
    "images": ImageScaling.from_dict,
    "table": TablePreparation.from_dict,
}


def preparation(stored: Mapping[str, Any]) -> Preparation:
    """The preparation that `to_dict` stored, by its "kind".

    >>> preparation({"kind": "images", "mean": [0.5], "sd": [0.25], "range": 255})
    ImageScaling(mean=(0.5,), sd=(0.25,), range=255.0)
    """
    if not isinstance(stored, Mapping):
        raise TypeError(f"expected the dict that a preparation's to_dict() gave, got a {type(stored).__name__}")
    kind = stored.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown kind of preparation {kind!r}; expected one of {list(KINDS)}")
    return KINDS[kind](stored)
