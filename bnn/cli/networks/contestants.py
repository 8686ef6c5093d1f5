"""What `bench` lets compete: K passes of a plain network, and ways to make K draws of its Bayesian twins."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bnn.cli.mistakes import one_of

if TYPE_CHECKING:
    from torch import Tensor, nn

PLAIN = "plain"
LAMDA = {"init_lamda": 0.03, "max_lamda": 0.03}  # the paper's cap for FFG-U
METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # what each is, and the arguments of `bnn.bayesianize_` that make it
    "ffg-u": ("FFG-U, sampling auto", {"inference": "inducing", **LAMDA}),
    "ffg-u-local": ("FFG-U, sampling local", {"inference": "inducing", "sampling": "local", **LAMDA}),
    "ffg-u-weight": ("FFG-U, sampling weight", {"inference": "inducing", "sampling": "weight", **LAMDA}),
    "ffg-u-lamda-0": ("FFG-U, lamda = 0", {"inference": "inducing", "max_lamda": 0}),
    "ensemble-u": (
        "Ensemble-U of 5, sampling auto",
        {"inference": "inducing", "q_inducing": "ensemble", "ensemble_size": 5, **LAMDA},
    ),
    "ffg-w": ("FFG-W", {"inference": "ffg", "init_sd": 0.01}),
    "paper": ("FFG-U, the paper's way", {"inference": "inducing", "sampling": "weight", **LAMDA}),
}
USUAL = [name for name in METHODS if name != "ensemble-u"]


def twins(plain: nn.Module, methods: list[str], rows: int, cols: int) -> dict[str, nn.Module]:
    """A converted copy of `plain` for every method, in evaluation mode.

    Inducing weights start at random, at the scale of ordinary weights: a projection of large layers takes minutes, and
    the time of a draw depends on sizes, not on values.
    """
    from bnn.bayesianize import bayesianize_

    start: dict[str, Any] = {"inducing_rows": rows, "inducing_cols": cols, "init": "paper", "sqrt_width_scaling": True}
    found = {}
    for method in methods:
        options = METHODS[method][1]
        found[method] = copy.deepcopy(plain)
        bayesianize_(found[method], **options, **(start if options["inference"] == "inducing" else {}))
        found[method].eval()
    return found


def chosen(text: str) -> list[str]:
    """The methods that a list with commas names, each once; the usual ones where it is empty.

    >>> chosen("ffg-w, FFG_U")
    ['ffg-w', 'ffg-u']
    """
    names = [name.strip().lower().replace("_", "-") for name in text.split(",")] if text else USUAL
    return list(dict.fromkeys(one_of("method", name, METHODS) for name in names))


def contestants(
    plain: nn.Module, nets: dict[str, nn.Module], x: Tensor, draws: int, likelihood: Any = "categorical"
) -> dict[str, Callable[[], Any]]:
    """Functions that make K = `draws` passes, or draws, at the inputs x (N, ...); the plain network comes first."""
    from bnn.prediction import predict

    runs: dict[str, Callable[[], Any]] = {PLAIN: lambda: plain_passes(plain, x, draws)}
    for method, net in nets.items():
        if method == "paper":
            runs[method] = partial(papers_way, net, x, draws)
        else:
            runs[method] = partial(predict, net, x, draws, likelihood)
    return runs


def plain_passes(net: nn.Module, x: Tensor, draws: int) -> None:
    """K passes of a network, one after the other."""
    import torch

    with torch.no_grad():
        for _ in range(draws):
            net(x)


def papers_way(net: nn.Module, x: Tensor, draws: int) -> None:
    """K passes in a loop; each factorises every layer anew and builds all of its weights."""
    import torch

    from bnn.nn.families.inducing import InducingBase

    layers = [module for module in net.modules() if isinstance(module, InducingBase)]
    with torch.no_grad():
        for _ in range(draws):
            for layer in layers:
                layer.reset_cache()
            net(x)
