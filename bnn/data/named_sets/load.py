"""Data sets by name: found in a folder or the cache, or downloaded when that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from bnn._common.checks import check_bool
from bnn._common.text import nearest
from bnn.data.dataset import Data, Part
from bnn.data.images import Augment, ImageScaling
from bnn.data.named_sets.catalogue import IMAGE_SETS, PARTS, ImageSet
from bnn.data.named_sets.formats import DIGITS_FILE, Stack, check
from bnn.data.named_sets.store import find, locate
from bnn.data.named_sets.uci import UCI_SETS, uci
from bnn.data.sources import VALIDATION
from bnn.data.split import inputs_aside, split

COMMON = ("first", "validation", "guarantee", "seed")  # options of every set


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
        guarantee: the share of the training part to set aside for a guarantee (`bnn.conformal`), as 0.1, but at least
            50; or their number. They are drawn first, and nothing else sees them.
        augment: whether training images are cropped at random (and flipped, where a mirror image looks alike); as
            usual: colour images are, grey ones are not.
        coarse: the 20 groups of CIFAR-100 instead of its 100 classes.
        split: of the UCI sets, 0 to 19 (protein: 0 to 4).
        positive: of the UCI sets: targets are above 0, and trained on as (log y - mean) / sd.

    Raises:
        ValueError: no such name, or a damaged file.
        FileNotFoundError: it is not there; the error says what to put where.

    >>> data = load("digits", validation=0.1)
    >>> len(data.train), len(data.validation), len(data.test), data.in_shape
    (1167, 130, 500, (1, 8, 8))
    """
    check_name(name)
    one = IMAGE_SETS.get(name)
    own = ["split", "positive"] if one is None else ["augment", "coarse"] if one.coarse else ["augment"]
    for option in options:
        if option not in (allowed := [*COMMON, *own]):
            raise TypeError(f"{name} has no option {option!r}; it has {', '.join(allowed)}")
    fraction, seed = options.pop("validation", None), options.pop("seed", 0)
    options |= {"guarantee": options.get("guarantee"), "seed": seed}
    options["first"] = check_count(options.pop("first", None))
    if one is None:
        data = uci(name.removeprefix("uci/"), download=download, **options)
    else:
        data = _images(one, download=download, **options)
    return data if fraction is None else data.with_validation(fraction, seed)


def completed(description: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """What the command line adds: the share of validation data, unless that is 0."""
    share = {"validation": VALIDATION} | description
    return share if share["validation"] else {name: value for name, value in share.items() if name != "validation"}


def _images(
    one: ImageSet,
    first: int | None,
    download: bool,
    guarantee: Any,
    seed: int,
    augment: bool | None = None,
    coarse: bool = False,
) -> Data:
    if not one.classes:
        raise ValueError(
            f"{one.name} only serves as out-of-distribution inputs: use bnn.data.ood({one.name!r}, like=data)"
        )
    wanted = one.augmented if augment is None else augment
    check_bool("augment", wanted)
    check_bool("coarse", coarse)
    train, test = (part_of(one, part, first, download, coarse) for part in PARTS)
    whole, aside = Part(*train), None
    if number := inputs_aside(guarantee, len(whole), one.name):
        cut = split(len(whole), 0.0, 0.0, seed, guarantee=number)
        whole, aside = whole.subset(cut.train), whole.subset(cut.guarantee)
    scaling = one.scaling or ImageScaling.learned(whole.x)
    return Data(
        one.name,
        "classification",
        replace(whole, prepare=scaling),
        Part(*test, scaling),
        classes=one.coarse if coarse else one.classes,
        preparation=scaling,
        augment=Augment(pad=one.pad, flip=one.flip) if wanted else None,
        guarantee=None if aside is None else replace(aside, prepare=scaling),
    )


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
        stack, path = one.embedded(part, first), DIGITS_FILE
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
