"""The named image sets: their classes, the files each may come in, and how it is scaled and augmented.

Where a set is published stands here with the SHA-256 of every file; one without a checksum that can be trusted has no
address: it is found in a folder, or not at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bnn.data.images import ImageScaling
from bnn.data.named_sets.formats import Stack, read_cifar, read_digits, read_idx, read_npz, read_svhn, read_zip
from bnn.data.named_sets.store import Form, Remote

PARTS = ("train", "test")

# Names of classes, in the order of their labels.
DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJ")
FASHION = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
HIRAGANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_COARSE = (
    "aquatic mammals",
    "fish",
    "flowers",
    "food containers",
    "fruit and vegetables",
    "household electrical devices",
    "household furniture",
    "insects",
    "large carnivores",
    "large man-made outdoor things",
    "large natural outdoor scenes",
    "large omnivores and herbivores",
    "medium-sized mammals",
    "non-insect invertebrates",
    "people",
    "reptiles",
    "small mammals",
    "trees",
    "vehicles 1",
    "vehicles 2",
)
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(name.replace("_", " ") for name in _FINE.split())


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


def idx(prefix: str, part: str, site: str = "", sums: Sequence[str] = ()) -> list[Form]:
    """MNIST's files; `sums`: SHA-256 of training images and labels, then of test images and labels."""
    start, own = ("train", sums[:2]) if part == "train" else ("t10k", sums[2:])
    names = [f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte"]
    remotes = tuple(Remote(f"{site}/{name}.gz", one) for name, one in zip(names, own, strict=False))
    packed = Form(read_idx, tuple(f"{prefix}{name}.gz" for name in names), remotes)
    return [packed, Form(read_idx, tuple(prefix + name for name in names))]


def cifar(prefix: str, part: str, kind: int, sha256: str) -> list[Form]:
    """The binary version of CIFAR-10 or CIFAR-100 (`kind`), as one archive or unpacked."""
    if kind == 10:
        folder, members = "cifar-10-batches-bin/", [f"data_batch_{i}.bin" for i in range(1, 6)]
        members, labels = (members if part == "train" else ["test_batch.bin"]), 1
    else:
        folder, members, labels = "cifar-100-binary/", [f"{part}.bin"], 2
    read = functools.partial(read_cifar, members=tuple(members), labels=labels)
    archive = f"cifar-{kind}-binary.tar.gz"
    remote = Remote(f"https://www.cs.toronto.edu/~kriz/{archive}", sha256)
    return [
        Form(read, (prefix + archive,), (remote,)),
        Form(read, tuple(f"{prefix}{folder}{name}" for name in members)),
    ]


def svhn(prefix: str, part: str) -> list[Form]:
    """SVHN's cropped digits."""
    sums = {
        "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    }
    name = f"{part}_32x32.mat"
    remote = Remote(f"http://ufldl.stanford.edu/housenumbers/{name}", sums[part])
    return [Form(read_svhn, (prefix + name,), (remote,))]


def tiny_imagenet(prefix: str, part: str) -> list[Form]:
    """Tiny ImageNet's archive, of which the validation images are read."""
    if part == "train":
        return []
    read = functools.partial(read_zip, pattern="tiny-imagenet-200/val/images/val_{}.JPEG")
    sha256 = "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"
    name = "tiny-imagenet-200.zip"
    return [Form(read, (prefix + name,), (Remote(f"http://cs231n.stanford.edu/{name}", sha256),))]


MNIST_FILES = functools.partial(
    idx,
    site="https://ossci-datasets.s3.amazonaws.com/mnist",
    sums=(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION_FILES = functools.partial(
    idx,
    site="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    sums=(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
KMNIST_FILES = functools.partial(
    idx,
    site="http://codh.rois.ac.jp/kmnist/dataset/kmnist",
    sums=(
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
)
CIFAR10_FILES = functools.partial(
    cifar, kind=10, sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
CIFAR100_FILES = functools.partial(
    cifar, kind=100, sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
)

_NO_PICKLE = "CIFAR's Python version (cifar-*-python) is a pickle and is never read: take the binary version"
_COLOUR: dict[str, Any] = {"pad": 4, "augmented": True}  # the usual crop; and a flip where mirror images look alike

IMAGE_SETS = {
    one.name: one
    for one in (
        ImageSet("digits", DIGITS, (), lambda prefix, part: [], pad=1, embedded=read_digits),
        ImageSet("mnist", DIGITS, ("mnist", "MNIST/raw", "MNIST"), MNIST_FILES),
        ImageSet(
            "fashion_mnist",
            FASHION,
            ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            FASHION_FILES,
            flip=True,
        ),
        ImageSet("kmnist", HIRAGANA, ("kmnist", "KMNIST/raw", "KMNIST"), KMNIST_FILES),
        ImageSet("notmnist", LETTERS, ("notmnist", "notMNIST"), idx),
        ImageSet(
            "cifar10",
            CIFAR10,
            ("cifar10", "", "CIFAR10"),
            CIFAR10_FILES,
            flip=True,
            scaling=ImageScaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            note=_NO_PICKLE,
            **_COLOUR,
        ),
        ImageSet(
            "cifar100",
            CIFAR100,
            ("cifar100", "", "CIFAR100"),
            CIFAR100_FILES,
            flip=True,
            scaling=ImageScaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
            coarse=CIFAR100_COARSE,
            note=_NO_PICKLE,
            **_COLOUR,
        ),
        ImageSet("svhn", DIGITS, ("svhn", "", "SVHN"), svhn, **_COLOUR),
        ImageSet("tiny_imagenet", (), ("tiny_imagenet", ""), tiny_imagenet),
    )
}
