"""What `bench` lets compete: K passes of a plain network, and ways to make K draws of its Bayesian twins."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bnn._conversion.methods import METHODS, conversions, find
from bnn.cli.mistakes import one_of

if TYPE_CHECKING:
    from torch import Tensor, nn

PLAIN = "plain"
USUAL = ["ffg-u", "ffg-u-local", "ffg-u-weight", "ffg-u-lamda-0", "ffg-w", "paper"]
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {  # of methods: what each is, of which, with which options
    "ffg-u": ("FFG-U, sampling auto", "ffg-u", {}),
    "ffg-u-local": ("FFG-U, sampling local", "ffg-u", {"sampling": "local"}),
    "ffg-u-weight": ("FFG-U, sampling weight", "ffg-u", {"sampling": "weight"}),
    "paper": ("FFG-U, the paper's way", "ffg-u", {"sampling": "weight"}),
}


def known() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """All contestants: every method that converts one network, and variants of some."""
    titles = {name: METHODS[name].title for name in conversions() if name not in VARIANTS}
    several = {name: f" of {METHODS[name].members}" if METHODS[name].members > 1 else "" for name in titles}
    return VARIANTS | {name: (f"{title}{several[name]}", name, {}) for name, title in titles.items()}


def twins(plain: nn.Module, methods: list[str], rows: int, cols: int) -> dict[str, nn.Module]:
    """A converted copy of `plain` for every method, in evaluation mode.

    Inducing weights start at random, at the scale of ordinary weights: a projection of large layers takes minutes, and
    the time of a draw depends on sizes, not on values.
    """
    from bnn.bayesianize import bayesianize_

    start: dict[str, Any] = {"inducing_rows": rows, "inducing_cols": cols, "init": "paper"}
    start |= {"prior_sd": 1.0, "sqrt_width_scaling": True}
    found = {}
    for contestant in methods:
        _, method, options = known()[contestant]
        found[contestant] = copy.deepcopy(plain)
        bayesianize_(found[contestant], method, **options, **({} if METHODS[method].size is None else start))
        found[contestant].eval()
    return found


def chosen(text: str) -> list[str]:
    """The methods that a list with commas names, each once; the usual ones where it is empty.

    >>> chosen("ffg-w, FFG_U")
    ['ffg-w', 'ffg-u']
    """
    typed = [name.strip().lower().replace("_", "-") for name in text.split(",")] if text else USUAL
    names = [found.name if name not in VARIANTS and (found := find(name)) is not None else name for name in typed]
    return list(dict.fromkeys(one_of("method", name, known()) for name in names))


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
