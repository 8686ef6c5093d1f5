"""Where the named image sets are published, with the SHA-256 of every file, and the forms they are published in.

A set without a checksum that can be trusted has no address here: it is found in a folder, or not at all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bnn.data.named_sets.download import Remote
from bnn.data.named_sets.formats import read_cifar, read_idx, read_svhn, read_zip
from bnn.data.named_sets.sources import Form


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


MNIST = functools.partial(
    idx,
    site="https://ossci-datasets.s3.amazonaws.com/mnist",
    sums=(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION = functools.partial(
    idx,
    site="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    sums=(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
KMNIST = functools.partial(
    idx,
    site="http://codh.rois.ac.jp/kmnist/dataset/kmnist",
    sums=(
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
)
CIFAR10 = functools.partial(cifar, kind=10, sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")
CIFAR100 = functools.partial(cifar, kind=100, sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")
