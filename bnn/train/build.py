"""Data and networks as a recipe describes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from bnn._common.checks import check_size
from bnn._common.text import nearest
from bnn.data.dataset import Data
from bnn.data.sources import source_of
from bnn.nn.nets import CNN, FCN, make_network
from bnn.nn.nets.factory import NETWORKS


def build_data(description: dict[str, Any]) -> Data:
    """The data set that {kind: where, option: value} describes; the kinds are the data sources."""
    return source_of(description).read(description)


def build_net(description: dict[str, Any], in_shape: Sequence[int], out_features: int) -> nn.Module:
    """The network that {"name": ..., option: value} describes, for inputs of this shape.

    >>> build_net({"name": "cnn", "channels": [8, 16], "hidden": [32]}, (1, 28, 28), 10).fc
    FCN(
      (Linear0): Linear(in_features=784, out_features=32, bias=True)
      (Nonlinarity0): ReLU()
      (Linear1): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    options = dict(description)
    name = str(options.pop("name")).lower()
    if name == "fcn":
        sizes = [math.prod(in_shape), *_sizes("hidden", options.pop("hidden", [64, 64])), out_features]
        net: nn.Module = FCN(sizes, **options)
        return net if len(in_shape) == 1 else nn.Sequential(nn.Flatten(), net)
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}{nearest(name, NETWORKS)}; expected one of {list(NETWORKS)}")
    if len(in_shape) != 3:
        raise ValueError(f"a {name} takes images (C, H, W), these inputs are {tuple(in_shape)}: use the network 'fcn'")
    if name == "cnn":
        return _cnn(options, in_shape, out_features)
    options.setdefault("in_channels", in_shape[0])
    return make_network(name, out_features=out_features, **options)


def _cnn(options: dict[str, Any], in_shape: Sequence[int], out_features: int) -> nn.Module:
    """3 x 3 convolutions that keep the size, a max-pooling after each (or every `maxpool_freq`-th), then a head."""
    channels = _sizes("channels", options.pop("channels", [32, 64]))
    hidden = _sizes("hidden", options.pop("hidden", [128]))
    every = options.get("maxpool_freq", 1)
    pools = len(channels) // every if every else 0
    height, width = (side >> pools for side in in_shape[1:])
    if not height or not width:
        raise ValueError(f"{pools} max-poolings leave nothing of {tuple(in_shape[1:])} pixels: use fewer channels")
    options.setdefault("padding", options.get("kernel_size", 3) // 2)
    return CNN([in_shape[0], *channels], [channels[-1] * height * width, *hidden, out_features], **options)


def _sizes(name: str, value: Any) -> list[int]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list of widths, as [64, 64]; got {value!r}")
    for size in value:
        check_size(f"an entry of {name}", size)
    return list(value)
