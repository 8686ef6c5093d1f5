"""The networks that experiments start from, each with its data: given by their weights, or trained here.

    BNN_DATA=<folder with the data sets> BNN_NETS=<folder for trained networks> python -m experiments.nets fashion_mlp

trains one of them (without a name: all) into BNN_NETS/<name>; what was stopped resumes, what is finished stays. Inputs
to train, to validate and to test on never overlap.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import bnn
from bnn.data import Data
from bnn.data.images import ImageScaling
from experiments import news
from experiments.cifar_resnet import CifarResNet

VALIDATION = 2000  # the last so many images of the training file; nothing trains on them
BASE = {"batch_size": 100, "cosine": True, "seed": 0}


@dataclass(frozen=True)
class Net:
    """A network and its data; `training` are the arguments of `bnn.fit`, None: its weights come with the data."""

    about: str
    build: Callable[[], nn.Module]
    data: Callable[[], Data]
    training: dict[str, Any] | None = None
    fixed: tuple[str, ...] = field(default=())  # layers that stay as they are when the network is converted


def images(name: str, train: int | None = None, scaling: ImageScaling | None = None) -> Data:
    """An image set, its last 2,000 training images as validation, of the others the first `train`."""
    data = bnn.data.load(name)
    scaling = scaling or data.preparation
    last = len(data.train) - VALIDATION
    parts = {
        "train": data.train.subset(slice(0, last if train is None else train)),
        "validation": data.train.subset(slice(last, None)),
        "test": data.test,
    }
    parts = {part: bnn.data.Part(stored.x, stored.y, scaling) for part, stored in parts.items()}
    return Data(name, "classification", **parts, classes=data.classes, preparation=scaling, augment=data.augment)


def imagenet_scaled() -> Data:
    """CIFAR-10 scaled as the weights of ResNet-20 and ResNet-56 expect it."""
    return images("cifar10", scaling=ImageScaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def resnet18() -> nn.Module:
    net = bnn.nn.nets.make_network("resnet18", out_features=10, kernel_size=3, remove_maxpool=True)
    return net.to(memory_format=torch.channels_last)  # twice as fast in bfloat16


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), bnn.nn.nets.make_network("fcn", sizes=[784, 300, 300, 10]))


def cnn() -> nn.Module:
    return bnn.nn.nets.make_network("cnn", channels=[1, 32, 64, 128], lin_sizes=[1152, 80, 10], padding=1)


SGD = BASE | {"optimiser": "sgd", "lr": 0.05, "weight_decay": 5e-4}
NETS = {
    "cifar_resnet20": Net("ResNet-20, CIFAR-10", lambda: CifarResNet(3), imagenet_scaled, fixed=("conv1", "linear")),
    "cifar_resnet56": Net("ResNet-56, CIFAR-10", lambda: CifarResNet(9), imagenet_scaled, fixed=("conv1", "linear")),
    "cifar_resnet18": Net(
        "wide ResNet-18, CIFAR-10",
        resnet18,
        lambda: images("cifar10", train=32_000),
        SGD | {"epochs": 2, "batch_size": 64, "precision": "bf16-mixed"},
        fixed=("conv1", "fc"),
    ),
    "fashion_mlp": Net(
        "MLP, Fashion-MNIST", mlp, lambda: images("fashion_mnist"), BASE | {"epochs": 10}, fixed=("1.Linear2",)
    ),
    "fashion_cnn": Net(
        "CNN, Fashion-MNIST",
        cnn,
        lambda: images("fashion_mnist"),
        BASE | {"epochs": 8},
        fixed=("Conv0", "fc.Linear1"),
    ),
    "news_conv1d": Net(
        "1-D conv net, AG News",
        news.NewsNet,
        news.news,
        BASE | {"epochs": 10},
        fixed=("linear",),
    ),
}


def folder(name: str) -> pathlib.Path:
    """Where a network that is trained here is."""
    if "BNN_NETS" not in os.environ:
        raise FileNotFoundError(f"{name} is trained by `python -m experiments.nets {name}`: set BNN_NETS to a folder")
    return pathlib.Path(os.environ["BNN_NETS"]) / name


def trained(name: str) -> nn.Module:
    """The network with its trained weights, in eval mode; FileNotFoundError says how to get them."""
    one = NETS[name]
    net = one.build()
    if one.training is None:
        path = news.data_file(f"{name.replace('cifar_', 'cifar10_')}.npz")
        with np.load(path) as stored:
            state = {key: torch.from_numpy(stored[key]) for key in stored.files}
        missing, unexpected = net.load_state_dict(state, strict=False)
        if unexpected or not all(key.endswith("num_batches_tracked") for key in missing):
            raise ValueError(f"{path} does not fit {name}: missing {missing}, unexpected {unexpected}")
        return net.eval()
    path = folder(name) / "net.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: `python -m experiments.nets {name}` trains it")
    bnn.load_(net, path)
    return net.to(memory_format=torch.contiguous_format).eval()


def train(name: str) -> None:
    one = NETS[name]
    if one.training is None:
        print(f"{name}: its weights come with the data, nothing to train")
        return
    torch.manual_seed(one.training["seed"])
    bnn.fit(one.build(), one.data(), out=folder(name), progress=True, tensorboard=False, **one.training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NETS)}")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.names or [name for name, one in NETS.items() if one.training]:
        train(name)


if __name__ == "__main__":
    main()
