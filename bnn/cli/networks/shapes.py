"""What goes into a network for a data set, and what comes out: for named sets without their files."""

from __future__ import annotations

from typing import Any

from bnn.data.named_sets.catalogue import IMAGE_SETS
from bnn.train.build import build_data

Shape = tuple[tuple[int, ...], int]  # of one input, and the number of outputs

_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
IMAGES = {
    "digits": (1, 8, 8),
    "mnist": _GREY,
    "fashion_mnist": _GREY,
    "kmnist": _GREY,
    "notmnist": _GREY,
    "cifar10": _COLOUR,
    "cifar100": _COLOUR,
    "svhn": _COLOUR,
}
COLUMNS = {  # of the UCI sets, which all have one target
    "uci/boston": 13,
    "uci/concrete": 8,
    "uci/energy": 8,
    "uci/kin8nm": 8,
    "uci/naval": 16,
    "uci/power": 4,
    "uci/protein": 9,
    "uci/wine": 11,
    "uci/yacht": 6,
}


def shape_of(data: dict[str, Any]) -> Shape:
    """The shape of one input of the data that a recipe describes, and how many classes or targets they have.

    Named sets need no files for this; others are read.

    >>> shape_of({"name": "cifar100", "coarse": True})
    ((3, 32, 32), 20)
    """
    name = data.get("name")
    if name in IMAGES:
        known = IMAGE_SETS[name]
        return IMAGES[name], len(known.coarse if data.get("coarse") else known.classes)
    if name in COLUMNS:
        return (COLUMNS[name],), 1
    built = build_data(data)
    return built.in_shape, built.out_features
