"""Running a network under several draws: in one pass, or one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from bnn.inputs import call, join_outputs
from bnn.nn.draw import Draw, open_draw, unwrapped
from bnn.nn.fold import run_folded


class FoldingWarning(UserWarning):
    """Draws ran one after the other because the network cannot run them in one pass."""


def in_one_pass(network: nn.Module, x: Any, draw: Draw) -> Any:
    """The outputs (K, N, ...) at `x` under the K draws of `draw`, in one pass of the network."""
    plain = unwrapped(network)
    return run_folded(lambda: call(plain, x), draw)


def one_by_one(network: nn.Module, x: Any, draws: Iterable[Draw], reason: Exception | None = None) -> Any:
    """The outputs (K, N, ...) at `x` under single draws; warns if `reason` kept them from running in one pass."""
    outputs = []
    for draw in draws:
        with open_draw(draw):
            outputs.append(call(network, x))
    if reason is not None:
        warnings.warn(
            f"draws ran one after the other: the network cannot run them in one pass "
            f"({type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else 'no message'})",
            FoldingWarning,
            stacklevel=5,
        )
    return join_outputs(outputs, torch.stack)
