"""K draws in one pass: `torch.vmap` runs the network once, and Bayesian layers see all K draws together.

What does not depend on the draw (the input, a deterministic stem, a skip connection around the first Bayesian layer)
has no dimension K and is computed once. Everything else has one, which vmap keeps apart from the network's own
dimensions: the network runs on the shapes it expects, whatever it does with them. `torch.vmap` has rules for torch's
functions; a Bayesian layer steps out of it (`folded`), works on tensors (K, ...), and steps in again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import _add_batch_dim, get_unwrapped, is_batchedtensor, maybe_get_bdim, maybe_get_level
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.overrides import TorchFunctionMode

from bnn.nn.draw import Draw, open_draw


def run_folded(call: Callable[..., Any], draw: Draw, shares: tuple[Tensor, ...] = ()) -> Any:
    """What `call()` returns under each of the K draws, stacked along a new dimension 0, in one pass.

    Args:
        shares: tensors (K, ...) of which draw k gets the k-th: `call(*shares_k)`.
    """

    def one(token: Tensor, *own: Tensor) -> Any:
        draw.token = token
        return call(*own)

    with open_draw(draw), _Samplewise(draw):
        return torch.vmap(one, randomness="different")(torch.arange(draw.count), *shares)


def folded(function: Callable[[Tensor], Tensor], input: Tensor, token: Tensor) -> Tensor:
    """Applies `function` to the input of all draws together: (K, ...), or (1, ...) where they share it, to (K, ...)."""
    level = maybe_get_level(token)
    if is_batchedtensor(input) and maybe_get_level(input) == level:
        x = get_unwrapped(input).movedim(maybe_get_bdim(input), 0)
    else:
        x = input[None]
    with temporarily_pop_interpreter_stack():
        y = function(x)
    return _add_batch_dim(y, 0, level)


# Functions of independent inputs: K draws of N inputs are K N inputs, which is faster than vmap's own rules.
_SAMPLEWISE = {F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d}


class _Samplewise(TorchFunctionMode):
    """Leads some functions around vmap while draws are folded."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and is_batchedtensor(args[0]):
            return folded(lambda x: _batch_norm(x, *args[1:], **kwargs), args[0], self.draw.token)
        if func in _SAMPLEWISE and is_batchedtensor(args[0]):
            return folded(lambda x: _merged(lambda y: func(y, *args[1:], **kwargs), x), args[0], self.draw.token)
        if func is Tensor.view and is_batchedtensor(args[0]) and not isinstance(args[1], torch.dtype):
            func = Tensor.reshape  # outputs of folded convolutions have the channels last in memory
        return func(*args, **kwargs)


def _merged(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` on K draws of N inputs (K, N, ...) as K N inputs."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _batch_norm(x: Tensor, mean: Tensor | None, var: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
    """Batch normalisation of K draws (K, N, ...): by the batch's own statistics each draw is a batch."""
    by_batch = kwargs["training"] if "training" in kwargs else args[2] if len(args) > 2 else False
    if not by_batch:
        return _merged(lambda y: F.batch_norm(y, mean, var, *args, **kwargs), x)
    return torch.stack([F.batch_norm(draw, mean, var, *args, **kwargs) for draw in x])
