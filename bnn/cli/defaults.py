"""Values of a run that nobody gave: chosen so that a table of some hundred rows or a folder of images simply works."""

from __future__ import annotations

from typing import Any

from torch import nn

from bnn.cli.methods import Method
from bnn.nn.base import layer_types
from bnn.train.batches import step_count
from bnn.train.recipe import PLAIN

STEPS, EPOCHS = 600, 20  # at least so many of each: fewer steps left inducing weights underfitted
FEW, SMALL_BATCH, BATCH = 2000, 32, 100  # up to FEW inputs small batches: the more steps an epoch has, the fewer epochs
PLAIN_RATE = 1e-3
RATES = {"inducing": 0.02, "inducingdeterministic": 0.02}
TINY = 16  # pixels a side; below, two poolings would leave hardly any


def schedule(inputs: int, method: Method, trained: bool = False) -> dict[str, Any]:
    """The main training on so many inputs, of a network that is `trained` already or not."""
    chosen = plain_schedule(inputs)
    if method.family != PLAIN:
        chosen |= {"lr": RATES.get(method.family, 0.01), "samples": method.members}
    return chosen


def plain_schedule(inputs: int) -> dict[str, Any]:
    """Maximum likelihood on so many inputs."""
    batch = SMALL_BATCH if inputs <= FEW else BATCH
    epochs = max(EPOCHS, -(-STEPS // step_count(inputs, batch)))
    return {"epochs": epochs, "batch_size": batch, "lr": PLAIN_RATE, "cosine": True}


def network(in_shape: tuple[int, ...]) -> str:
    """The network for inputs of this shape."""
    return "cnn" if len(in_shape) == 3 else "fcn"


def options(
    method: Method, net: nn.Module, rows: int | None = None, cols: int | None = None, several: bool = False
) -> dict[str, Any]:
    """The method of a recipe: what `bnn.bayesianize_` takes to put it on the plain network `net`, or `several` of it.

    A side of the inducing matrix is as large as asked for. Where nobody asks, it is at most the smaller side of the
    layer, since the mean of W has no larger rank than that; so small layers do not take more parameters than they had.
    """
    if method.size is None:
        return {"inference": method.family, **method.options}
    if rows is not None or cols is not None:
        sizes = {"inducing_rows": rows or method.size, "inducing_cols": cols or method.size}
        return {"inference": method.family, **sizes, **method.options}
    narrow, wide = _layers(net, method.size)
    narrow = {f"*.{name}" if several else name: size for name, size in narrow.items()}
    if not narrow:
        return {"inference": method.family, **_square(method.size), **method.options}
    keys = dict.fromkeys(wide, method.size) | narrow
    entries = {key: {"inference": method.family, **_square(size)} for key, size in keys.items()}
    return {"inference": entries, **method.options}


def _square(size: int) -> dict[str, int]:
    return {"inducing_rows": size, "inducing_cols": size}


def _layers(net: nn.Module, size: int) -> tuple[dict[str, int], list[str]]:
    """{layer: its smaller side} of the layers narrower than `size`, and the classes of the others."""
    narrow: dict[str, int] = {}
    wide: list[str] = []
    for name, layer in net.named_modules():
        if type(layer) not in set(layer_types()):
            continue
        weight: Any = layer.weight
        side = min(weight.shape[0], weight[0].numel() + (layer.bias is not None))
        if side < size:
            narrow[name] = side
        else:
            wide.append(type(layer).__name__)
    return narrow, list(dict.fromkeys(wide))
