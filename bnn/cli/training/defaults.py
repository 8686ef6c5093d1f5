"""Default values of a run, so that a table of some hundred rows or a folder of images simply works.

A Bayesian network is trained plain first, which is cheap, then converted and trained on. On the tables of scikit-learn,
the digits and made pictures that was as good as training it from scratch or better, in half the time, and its NLL was
that of the plain network or better for classes (digits 0.10 instead of 0.16), about the same for real targets.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from bnn._conversion.methods import FEW, Method, layer_shape
from bnn.data.batches import step_count
from bnn.nn.base import layer_types

STEPS, EPOCHS = 600, 12  # of plain training, or from scratch: at least so many of each
AFTER = 2  # what comes after plain training takes this part of its epochs
BATCH = (32, 100)  # up to FEW inputs, and for more: small batches, since each epoch costs time of its own
PLAIN_LR = (5e-3, 1e-3)
PATIENCE = 5  # plain networks overfit: they keep their best epoch, and stop after a fifth of all without a better one
# Real targets take ten times as many steps (docs/decisions.md), as long as validation data say when it is enough.
REAL_STEPS, REAL_AFTER = 6_000, 2_400  # of plain training at most, and of what comes after it
REAL_LR = (5e-3, 3e-3)
REAL_PATIENCE = 3  # of what comes after: a third
SPREAD = 0.5  # posterior noise at the start, relative to that of real targets
TINY = 16  # pixels a side; below, a pooling after every convolution would leave hardly any


def plain_schedule(inputs: int, validated: bool, epochs: int | None = None, real: bool = False) -> dict[str, Any]:
    """Maximum likelihood on so many inputs."""
    many = inputs > FEW
    longer = real and validated
    if epochs is None:
        epochs = _epochs(inputs, REAL_STEPS if longer else STEPS)
    lr = (REAL_LR if longer else PLAIN_LR)[many]
    chosen = {"epochs": epochs, "batch_size": BATCH[many], "lr": lr, "cosine": True}
    return chosen | ({"patience": max(PATIENCE, epochs // PATIENCE)} if validated else {})


def schedule(inputs: int, method: Method, trained: bool, validated: bool = False, real: bool = False) -> dict[str, Any]:
    """The training of a Bayesian method on so many inputs, of a network that is `trained` already or not."""
    many = inputs > FEW
    longer = real and validated
    steps = (REAL_AFTER if trained else REAL_STEPS) if longer else STEPS
    epochs = _epochs(inputs, steps) if longer or not trained else -(-_epochs(inputs, steps) // AFTER)
    lr = method.rate(inputs, trained)
    chosen = {"epochs": epochs, "batch_size": BATCH[many], "lr": lr, "cosine": True}
    chosen |= {"patience": max(PATIENCE, epochs // REAL_PATIENCE)} if longer else {}
    return chosen | {"samples": method.members, "kl_weight": method.kl_weight}


def _epochs(inputs: int, steps: int) -> int:
    return max(EPOCHS, -(-steps // step_count(inputs, BATCH[inputs > FEW])))


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
