"""Parts of the named image sets: training or test images, each for itself."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from bnn._common.text import nearest
from bnn.data.dataset import Part
from bnn.data.named_sets.digits import FILE
from bnn.data.named_sets.formats import Stack, check
from bnn.data.named_sets.images import IMAGE_SETS, PARTS, ImageSet
from bnn.data.named_sets.sources import find, locate
from bnn.data.named_sets.uci import UCI_SETS
from bnn.data.scaling import ImageScaling


def names() -> list[str]:
    """The names that `load` knows; `tiny_imagenet` is for `load_part` and `ood` alone.

    >>> names()[:5]
    ['digits', 'mnist', 'fashion_mnist', 'kmnist', 'notmnist']
    """
    return [*IMAGE_SETS, *(f"uci/{name}" for name in UCI_SETS)]


def load_part(
    name: str, part: str = "test", *, first: int | None = None, coarse: bool = False, download: bool = False
) -> Part:
    """One part of a named image set, also where the other one is missing, or labels are (`y` is None then).

    Files with only the first images of a part (`svhn_train_first1083.npz`) do as well. Pixels are scaled as by `load`
    where that takes fixed constants, otherwise by the part's own mean and sd.

    Args:
        name: an image set of `names()`.
        part: "train" or "test".
        first, coarse, download: as for `load`.

    >>> load_part("digits").x.shape
    torch.Size([500, 1, 8, 8])
    """
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; expected one of {list(PARTS)}")
    one = _image_set(name)
    if coarse and not one.coarse:
        raise TypeError(f"{name} has no coarse labels; only cifar100 has")
    x, y = part_of(one, part, check_count(first), download, coarse, partial=True)
    return Part(x, y, one.scaling or ImageScaling.learned(x))


def part_of(
    one: ImageSet, part: str, first: int | None, download: bool, coarse: bool = False, partial: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Images uint8 (N, C, H, W) of one part, and labels int64 (N,), or None where there are none."""
    if one.embedded is not None:
        stack, path = one.embedded(part, first), FILE
    else:
        form, paths = locate(f"the {part} part of {one.name}", one.forms(part, partial), download, _hint(one, part))
        stack, path = cast(Stack, form.read(paths, first)), paths[0]
    check(stack, path, len(one.classes), len(one.coarse))
    labels = stack.coarse if coarse else stack.labels
    if not partial and labels is None:
        raise ValueError(f"{path} has no {'coarse ' if coarse else ''}labels; bnn.data.load_part reads it without")
    return torch.from_numpy(stack.images), None if labels is None else torch.from_numpy(labels.astype("int64"))


def check_name(name: Any) -> None:
    """Raises ValueError, with the nearest names and all of them, unless there is such a set."""
    if name in names():
        return
    key = str(name).lower().replace("-", "_")
    raise ValueError(
        f"unknown data set {name!r}{nearest(key, names(), shown=3, cutoff=0.5)}. The names are {', '.join(names())}"
    )


def check_count(first: Any) -> int | None:
    """How many are wanted, checked."""
    if first is None or (isinstance(first, int) and not isinstance(first, bool) and first >= 1):
        return first
    raise ValueError(f"first must be a whole number of at least 1, or None for all; got {first!r}")


def _hint(one: ImageSet, part: str) -> str:
    """What else to do where a part is missing: some of it, or the other one, may be there."""
    hints = []
    for other in (part, PARTS[1 - PARTS.index(part)]):
        there = find(one.forms(other, partial=True))
        if there is not None:
            hints.append(f"{there[1][0]} is there, which bnn.data.load_part({one.name!r}, {other!r}) reads")
    return "; ".join([*hints, *([one.note] if one.note else [])])


def _image_set(name: str) -> ImageSet:
    check_name(name)
    if name not in IMAGE_SETS:
        raise ValueError(f"{name} is no image set; expected one of {list(IMAGE_SETS)}")
    return IMAGE_SETS[name]
