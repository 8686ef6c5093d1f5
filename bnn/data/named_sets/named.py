"""Data sets by name: found in a folder or the cache, or downloaded when that is allowed."""

from __future__ import annotations

from typing import Any

from bnn._common.checks import check_bool
from bnn.data.augment import Augment
from bnn.data.dataset import Data, Part
from bnn.data.named_sets.images import IMAGE_SETS, PARTS, ImageSet
from bnn.data.named_sets.outside import ood
from bnn.data.named_sets.parts import check_count, check_name, load_part, names, part_of
from bnn.data.named_sets.uci import uci
from bnn.data.scaling import ImageScaling

__all__ = ["load", "load_part", "names", "ood"]

COMMON = ("first", "validation", "seed")  # options of every set


def load(name: str, *, download: bool = False, **options: Any) -> Data:
    """A data set by its name.

    Its files are looked for in the folders of the environment variable BNN_DATA, then in the cache (BNN_CACHE, or
    `bayesianize` in XDG_CACHE_HOME or ~/.cache), in every usual form; `digits` comes with the package. Images are
    uint8 (N, C, H, W) and scaled when they are used: CIFAR by fixed constants, the others by the mean and sd of their
    training part. Rows of the UCI sets and their targets are scaled by the training part of the split.

    Args:
        name: one of `names()`.
        download: whether to download what is not there, from its official place, with a checksum; BNN_DOWNLOAD=1
            allows it everywhere.
        first: only the first so many of each part.
        validation: the fraction of the training part to set aside, by `seed` (0).
        augment: whether training images are cropped at random (and flipped, where a mirror image looks alike); as
            usual: colour images are, grey ones are not.
        coarse: the 20 groups of CIFAR-100 instead of its 100 classes.
        split: of the UCI sets, 0 to 19 (protein: 0 to 4).

    Raises:
        ValueError: no such name, or a damaged file.
        FileNotFoundError: it is not there; the error says what to put where.

    >>> data = load("digits", validation=0.1)
    >>> len(data.train), len(data.validation), len(data.test), data.in_shape
    (1167, 130, 500, (1, 8, 8))
    """
    check_name(name)
    one = IMAGE_SETS.get(name)
    own = ["split"] if one is None else ["augment", "coarse"] if one.coarse else ["augment"]
    for option in options:
        if option not in (allowed := [*COMMON, *own]):
            raise TypeError(f"{name} has no option {option!r}; it has {', '.join(allowed)}")
    fraction, seed = options.pop("validation", None), options.pop("seed", 0)
    options["first"] = check_count(options.pop("first", None))
    if one is None:
        data = uci(name.removeprefix("uci/"), download=download, **options)
    else:
        data = _images(one, download=download, **options)
    return data if fraction is None else data.with_validation(fraction, seed)


def _images(
    one: ImageSet, first: int | None, download: bool, augment: bool | None = None, coarse: bool = False
) -> Data:
    if not one.classes:
        raise ValueError(f"{one.name} only serves as inputs of another kind: use bnn.data.ood({one.name!r}, like=data)")
    wanted = one.augmented if augment is None else augment
    check_bool("augment", wanted)
    check_bool("coarse", coarse)
    train, test = (part_of(one, part, first, download, coarse) for part in PARTS)
    scaling = one.scaling or ImageScaling.learned(train[0])
    return Data(
        one.name,
        "classification",
        Part(*train, scaling),
        Part(*test, scaling),
        classes=one.coarse if coarse else one.classes,
        preparation=scaling,
        augment=Augment(pad=one.pad, flip=one.flip) if wanted else None,
    )
