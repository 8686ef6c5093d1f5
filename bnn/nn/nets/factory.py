"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import nn

from .cnn import CNN
from .fcn import FCN
from .resnet import DEPTHS, ResNet

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "fcn": FCN,
    "cnn": CNN,
    **{f"resnet{depth}": partial(ResNet, depth) for depth in DEPTHS},
}

# the class that receives the keywords a network does not name itself, and the arguments the network gives it
_PASSED_ON: dict[str, tuple[type[nn.Module], set[str]]] = {
    "fcn": (nn.Linear, {"in_features", "out_features"}),
    "cnn": (nn.Conv2d, {"in_channels", "out_channels"}),
}


def make_network(name: str, **options: Any) -> nn.Module:
    """A freshly initialised network by its name, in any case.

    Args:
        name: "fcn" (`FCN`), "cnn" (`CNN`), "resnet18", "resnet34", "resnet50", "resnet101" or "resnet152" (`ResNet`).
        **options: arguments of that class.

    Returns:
        The network; `ValueError` for an unknown name, `TypeError` for an unknown option.

    >>> net = make_network("ResNet50", out_features=10, kernel_size=3, remove_maxpool=True)
    >>> sum(p.numel() for p in net.parameters())
    23520842
    """
    key = name.lower()
    if key not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; expected one of {list(NETWORKS)}")
    known = _known_options(key)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(f"unknown options {unknown} for network {name!r}; expected some of {known}")
    return NETWORKS[key](**options)


def _known_options(key: str) -> list[str]:
    """Every keyword that the network takes or passes on, in the order of the signatures."""
    own = [p.name for p in signature(NETWORKS[key]).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    if key not in _PASSED_ON:
        return own
    receiver, given = _PASSED_ON[key]
    return own + [name for name in signature(receiver).parameters if name not in given and name not in own]
