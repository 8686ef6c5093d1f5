"""The plain network that a command is about: by name and flags, or as a recipe describes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.options import NETS, whole_numbers
from bnn.data import names as data_names
from bnn.data.named_sets.catalogue import IMAGE_SETS
from bnn.ensemble import Ensemble
from bnn.likelihoods.registry import class_of
from bnn.train.build import build_data, build_net
from bnn.train.recipe import Recipe

IN_SHAPE, CLASSES = "3,32,32", 10  # CIFAR-10, the paper's
SMALL = 64  # pixels a side, up to which images count as small
FOR = {"hidden": ("fcn", "cnn"), "channels": ("cnn",), "small_images": tuple(n for n in NETS if n.startswith("resnet"))}
Shape = tuple[tuple[int, ...], int]  # of one input, and the number of outputs

_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
IMAGES = {
    "digits": (1, 8, 8),
    "mnist": _GREY,
    "fashion_mnist": _GREY,
    "kmnist": _GREY,
    "notmnist": _GREY,
    "cifar10": _COLOUR,
    "cifar100": _COLOUR,
    "svhn": _COLOUR,
}
COLUMNS = {  # of the UCI sets, which all have one target
    "uci/boston": 13,
    "uci/concrete": 8,
    "uci/energy": 8,
    "uci/kin8nm": 8,
    "uci/naval": 16,
    "uci/power": 4,
    "uci/protein": 9,
    "uci/wine": 11,
    "uci/yacht": 6,
}


@dataclass(frozen=True)
class Architecture:
    """A plain network, or an ensemble of `members` of them, that is not built yet.

    Args:
        net: {"name": ..., option: value}, as in a recipe.
        in_shape: of one input.
        outputs: how many numbers come out.
        members: of a deep ensemble; 1 is one network.
    """

    net: dict[str, Any]
    in_shape: tuple[int, ...]
    outputs: int
    members: int = 1

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> Architecture:
        """The plain network of a recipe; named data sets need not be there."""
        in_shape, outputs = shape_of(recipe.data)
        if recipe.likelihood is not None:
            outputs *= class_of(recipe.likelihood).outputs_per_target
        return cls(recipe.net, in_shape, outputs, recipe.members)

    def build(self) -> nn.Module:
        """One network, freshly initialised."""
        return build_net(self.net, self.in_shape, self.outputs)

    def weightless(self) -> nn.Module:
        """The network or the ensemble without memory for its weights (on the meta device): enough to be counted."""
        with torch.device("meta"):
            nets = [self.build() for _ in range(self.members)]
        return nets[0] if self.members == 1 else Ensemble(nets)

    def title(self) -> str:
        """What it is, in a line."""
        options = [_shown(name, value) for name, value in self.net.items() if name not in ("name", "in_channels")]
        several = f"{self.members} x " if self.members > 1 else ""
        form = f" ({', '.join(options)})" if options else ""
        inputs = " x ".join(map(str, self.in_shape))
        return f"{several}{self.net['name']}{form}, inputs {inputs}, {self.outputs} outputs"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"net": self.net, "in_shape": list(self.in_shape), "outputs": self.outputs, "members": self.members}


def named(
    name: str,
    data: str | None = None,
    in_shape: str | None = None,
    classes: int | None = None,
    hidden: str | None = None,
    channels: str | None = None,
    small_images: bool | None = None,
) -> Architecture:
    """The network of this name for inputs of this shape, or of a named data set; Mistake for flags that do not fit."""
    name = one_of("network", name.lower(), NETS)
    for flag, value in {"hidden": hidden, "channels": channels, "small_images": small_images}.items():
        if value is not None and name not in FOR[flag]:
            option = f"--{flag.replace('_', '-')}"
            raise Mistake(f"{option} is for {', '.join(FOR[flag])}; a {name} has no such option: leave it out")
    if data is not None:
        if in_shape is not None or classes is not None:
            raise Mistake("--data sets the shape of the inputs and the number of classes: leave out the flags for them")
        shape, outputs = shape_of({"name": one_of("data set", data, data_names())})
    else:
        shape = tuple(whole_numbers("--in-shape", IN_SHAPE if in_shape is None else in_shape, IN_SHAPE))
        outputs = CLASSES if classes is None else classes
        if math.prod(shape) > 2**31:
            raise Mistake(
                f"--in-shape {in_shape} is an input of {math.prod(shape):,} numbers; at most 2^31 are allowed"
            )
    net: dict[str, Any] = {"name": name}
    if hidden is not None:
        net["hidden"] = whole_numbers("--hidden", hidden, "64,64") if hidden else []
    if channels is not None:
        net["channels"] = whole_numbers("--channels", channels, "32,64")
    if name in FOR["small_images"] and len(shape) == 3:
        net |= _form_of_resnet(shape, small_images)
    return Architecture(net, shape, outputs)


def _form_of_resnet(shape: tuple[int, ...], small: bool | None) -> dict[str, Any]:
    """The first layers of a ResNet: those of CIFAR for small images, those of ImageNet for others."""
    small = max(shape[1:]) <= SMALL if small is None else small
    return {"in_channels": shape[0], **({"kernel_size": 3, "remove_maxpool": True} if small else {})}


def shape_of(data: dict[str, Any]) -> Shape:
    """The shape of one input of the data that a recipe describes, and how many classes or targets they have.

    Named sets need no files for this; others are read.

    >>> shape_of({"name": "cifar100", "coarse": True})
    ((3, 32, 32), 20)
    """
    name = data.get("name")
    if name in IMAGES:
        known = IMAGE_SETS[name]
        return IMAGES[name], len(known.coarse if data.get("coarse") else known.classes)
    if name in COLUMNS:
        return (COLUMNS[name],), 1
    built = build_data(data)
    return built.in_shape, built.out_features


def _shown(name: str, value: Any) -> str:
    """An option of a network for people."""
    if name == "remove_maxpool":
        return "no max-pooling" if value else "max-pooling"
    values = "-".join(map(str, value)) or "none" if isinstance(value, list | tuple) else value
    return f"{name.replace('_', ' ')} {values}"
