"""What the networks that are one chain of named layers share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from bnn._common.text import nearest

Nonlinearity = str | Callable[[], nn.Module]


class Chain(nn.Sequential):
    """A sequential network with a constructor of its own; a slice is an `nn.Sequential` with the names kept."""

    def __getitem__(self, idx: slice | int) -> Any:
        # torch would call the constructor of the subclass with the sliced children
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self.named_children())[idx]))
        return super().__getitem__(idx)


def nonlinearity_class(nonlinearity: Nonlinearity) -> Callable[[], nn.Module]:
    """The class that `nonlinearity` names in `torch.nn`; a class is returned as it is."""
    if isinstance(nonlinearity, nn.Module):
        raise TypeError(
            f"nonlinearity must be a class or its name, since every layer has its own; got {nonlinearity!r}"
        )
    if not isinstance(nonlinearity, str):
        return nonlinearity
    found = getattr(nn, nonlinearity, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    hint = nearest(nonlinearity, [name for name in dir(nn) if name[0].isupper()], shown=3) or ", such as 'ReLU'"
    raise ValueError(f"unknown nonlinearity {nonlinearity!r}; expected the name of a module class in torch.nn{hint}")


def check_sizes(what: str, sizes: object, count: int) -> None:
    """A chain of `count` sizes has `count - 1` layers, and needs at least one."""
    if count < 2:
        raise ValueError(f"{what} needs at least two entries, input and output; got {sizes!r}")


def placement(options: Mapping[str, Any]) -> dict[str, Any]:
    """The `device` and `dtype` among `options`, which every layer of a network must share."""
    return {key: options[key] for key in ("device", "dtype") if key in options}
