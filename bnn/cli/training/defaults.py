"""Default network and method of a run, so that a table of some hundred rows or a folder of images simply works."""

from __future__ import annotations

from typing import Any

from torch import nn

from bnn._conversion.methods import Method, layer_shape
from bnn.nn.base import layer_types

TINY = 16  # pixels a side; below, a pooling after every convolution would leave hardly any


def network(in_shape: tuple[int, ...]) -> str:
    """The network for inputs of this shape."""
    return "cnn" if len(in_shape) == 3 else "fcn"


def options(
    method: Method, net: nn.Module, rows: int | None = None, cols: int | None = None, several: bool = False
) -> dict[str, Any]:
    """The method of a recipe: what `bnn.bayesianize_` takes to put it on the plain network `net`, or `several` of it.

    Everything is written out, so that a recipe means the same whatever a later version thinks of the method. A side of
    the inducing matrix is as large as asked for; by default see `Method.layer_options`.
    """
    if method.size is None:
        return {"inference": method.family, **method.options}
    asked = method.sizes(rows, cols)
    usual = {"inference": method.family, **method.sizes(method.size, method.size)} | asked
    wide: dict[str, Any] = {}
    narrow: dict[str, Any] = {}
    for name, layer in net.named_modules():
        if type(layer) in set(layer_types()):
            own = method.layer_options(*layer_shape(layer, method.family)) | asked
            entry = usual | {name: value for name, value in own.items() if method.options.get(name) != value}
            if entry == usual:
                wide["members" if several else type(layer).__name__] = entry  # a container yields to globs, a class not
            else:
                narrow[f"*.{name}" if several else name] = entry
    return {"inference": wide | narrow, **method.options} if narrow else usual | dict(method.options)
