"""The networks that experiments start from, each with its data: given by their weights, or trained here.

    BNN_DATA=<folder with the data sets> BNN_NETS=<folder for trained networks> python -m experiments.nets fashion_mlp

trains one of them (without a name: all) into BNN_NETS/<name>; what was stopped resumes, what is finished stays.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import bnn
from bnn.data import Data
from experiments import news
from experiments.cifar_resnet import CifarResNet
from experiments.data import data_file, imagenet_scaled, images

BASE = {"batch_size": 100, "cosine": True, "seed": 0}


@dataclass(frozen=True)
class Net:
    """A network and its data.

    Args:
        training: the arguments of `bnn.fit`, and `first`, how many inputs to train on; None: BNN_DATA has its weights.
        half_size: the same for training on images of half their size before that, which takes a quarter of the time.
        fixed: layers that stay as they are when the network is converted.
    """

    about: str
    build: Callable[[], nn.Module]
    data: Callable[[], Data]
    training: dict[str, Any] | None = None
    half_size: dict[str, Any] | None = None
    fixed: tuple[str, ...] = ()


def resnet18() -> nn.Module:
    net = bnn.nn.nets.make_network("resnet18", out_features=10, kernel_size=3, remove_maxpool=True)
    return net.to(memory_format=torch.channels_last)  # twice as fast in bfloat16


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), bnn.nn.nets.make_network("fcn", sizes=[784, 300, 300, 10]))


def cnn() -> nn.Module:
    return bnn.nn.nets.make_network("cnn", channels=[1, 32, 64, 128], lin_sizes=[1152, 80, 10], padding=1)


SGD = BASE | {"optimiser": "sgd", "batch_size": 64, "weight_decay": 5e-4, "precision": "bf16-mixed"}
NETS = {
    "cifar_resnet20": Net("ResNet-20, CIFAR-10", lambda: CifarResNet(3), imagenet_scaled, fixed=("conv1", "linear")),
    "cifar_resnet56": Net("ResNet-56, CIFAR-10", lambda: CifarResNet(9), imagenet_scaled, fixed=("conv1", "linear")),
    "cifar_resnet18": Net(
        "wide ResNet-18, CIFAR-10",
        resnet18,
        lambda: images("cifar10", train=32_000),
        SGD | {"epochs": 1, "lr": 0.02, "first": 10_000},
        half_size=SGD | {"epochs": 2, "lr": 0.05},
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
        path = data_file(f"{name.replace('cifar_', 'cifar10_')}.npz")
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
    options = dict(one.training)
    torch.manual_seed(options["seed"])
    net, data, out = one.build(), one.data(), folder(name)
    if one.half_size is not None:
        halving = nn.Sequential(nn.AvgPool2d(2), net)
        bnn.fit(halving, data, out=out / "half_size", progress=True, tensorboard=False, **one.half_size)
    first = options.pop("first", len(data.train))
    data = replace(data, train=data.train.subset(slice(0, first)))
    bnn.fit(net, data, out=out, progress=True, tensorboard=False, **options)


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
