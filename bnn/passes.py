"""Running a network under several draws: in one pass, or one after the other."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from bnn.inputs import call
from bnn.nn.draw import Draw, open_draw, unwrapped
from bnn.nn.fold import run_folded


class FoldingWarning(UserWarning):
    """Draws ran one after the other because the network cannot run them in one pass."""


def in_one_pass(network: nn.Module, x: Any, draw: Draw, dims: Any = None) -> Any:
    """The outputs (K, N, ...) at `x` under the K draws of `draw`, in one pass; `dims` as in `run_folded`."""
    plain = unwrapped(network)
    return run_folded(lambda own: call(plain, own), draw, x, dims)


def one_by_one(network: nn.Module, inputs: Iterable[Any], draws: Iterable[Draw]) -> list[Any]:
    """The outputs of single draws, each at its input, one pass each."""
    outputs = []
    for draw, x in zip(draws, inputs, strict=True):
        with open_draw(draw):
            outputs.append(call(network, x))
    return outputs


def warn_unfolded(reason: Exception) -> None:
    """Says why draws did not run in one pass, at the line outside this library that asked for them."""
    message = str(reason).split("\n")[0] or "no message"
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bnn."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(
        f"draws ran one after the other: the network cannot run them in one pass ({type(reason).__name__}: {message})",
        FoldingWarning,
        stacklevel=depth,
    )


class Statistics:
    """Running statistics of BatchNorm in train mode, kept so that a pass that has to start again leaves no trace."""

    def __init__(self, network: nn.Module) -> None:
        modules = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        self._kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]

    def restore_(self) -> None:
        """Puts them back, in place."""
        with torch.no_grad():
            for buffer, value in self._kept:
                buffer.copy_(value)


def counts_batches(network: nn.Module) -> bool:
    """Whether some BatchNorm averages its statistics by the number of batches, which one pass would miscount."""
    return any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.momentum is None for m in network.modules()
    )
