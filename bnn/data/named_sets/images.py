"""The named image sets: the files each may come in, its classes, and how it is scaled and augmented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bnn.data.named_sets import classes, published
from bnn.data.named_sets.digits import read_digits
from bnn.data.named_sets.formats import Stack
from bnn.data.named_sets.packed import read_npz
from bnn.data.named_sets.sources import Form
from bnn.data.scaling import ImageScaling

PARTS = ("train", "test")


@dataclass(frozen=True)
class ImageSet:
    """A named image set.

    Args:
        name: as in `bnn.data.load(name)`.
        classes: their names; empty for a set that only serves as out-of-distribution inputs.
        folders: the sub-folders its files may lie in, "" for the searched folder itself; the first one takes downloads.
        official: the forms in which a part is published, given (folder prefix, part).
        pad, flip, augmented: how training images are augmented, and whether they are unless told otherwise.
        scaling: fixed constants; None: learned on the training part.
        coarse: the names of the groups of classes.
        embedded: reads (part, how many) of a set that comes with the package, which is not looked for in any folder.
        note: what the error for a missing file should add.
    """

    name: str
    classes: tuple[str, ...]
    folders: tuple[str, ...]
    official: Callable[[str, str], list[Form]]
    pad: int = 2
    flip: bool = False
    augmented: bool = False
    scaling: ImageScaling | None = None
    coarse: tuple[str, ...] = ()
    embedded: Callable[[str, int | None], Stack] | None = None
    note: str = ""

    def forms(self, part: str, partial: bool = False) -> list[Form]:
        """The forms in which a part may be stored, best first; `partial`: files with only the first images too."""
        prefixes = [f"{folder}/" if folder else "" for folder in self.folders]
        places = dict.fromkeys(["", *prefixes])
        parts = ["test", "val"] if self.name == "tiny_imagenet" and part == "test" else [part]
        stems = [f"{prefix}{self.name}_{one}" for one in parts for prefix in places]
        forms = [Form(read_npz, (f"{stem}.npz",)) for stem in stems]
        forms += [form for prefix in prefixes for form in self.official(prefix, part)]
        return forms + [Form(read_npz, (f"{stem}_first*.npz",)) for stem in stems if partial]


_NO_PICKLE = "CIFAR's Python version (cifar-*-python) is a pickle and is never read: take the binary version"
_COLOUR: dict[str, Any] = {"pad": 4, "augmented": True}  # the usual crop; and a flip where mirror images look alike

IMAGE_SETS = {
    one.name: one
    for one in (
        ImageSet("digits", classes.DIGITS, (), lambda prefix, part: [], pad=1, embedded=read_digits),
        ImageSet("mnist", classes.DIGITS, ("mnist", "MNIST/raw", "MNIST"), published.MNIST),
        ImageSet(
            "fashion_mnist",
            classes.FASHION,
            ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            published.FASHION,
            flip=True,
        ),
        ImageSet("kmnist", classes.HIRAGANA, ("kmnist", "KMNIST/raw", "KMNIST"), published.KMNIST),
        ImageSet("notmnist", classes.LETTERS, ("notmnist", "notMNIST"), published.idx),
        ImageSet(
            "cifar10",
            classes.CIFAR10,
            ("cifar10", "", "CIFAR10"),
            published.CIFAR10,
            flip=True,
            scaling=ImageScaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            note=_NO_PICKLE,
            **_COLOUR,
        ),
        ImageSet(
            "cifar100",
            classes.CIFAR100,
            ("cifar100", "", "CIFAR100"),
            published.CIFAR100,
            flip=True,
            scaling=ImageScaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
            coarse=classes.CIFAR100_COARSE,
            note=_NO_PICKLE,
            **_COLOUR,
        ),
        ImageSet("svhn", classes.DIGITS, ("svhn", "", "SVHN"), published.svhn, **_COLOUR),
        ImageSet("tiny_imagenet", (), ("tiny_imagenet", ""), published.tiny_imagenet),
    )
}
