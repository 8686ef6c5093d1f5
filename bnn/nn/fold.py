"""K draws in one pass: `torch.vmap` runs the network once, and Bayesian layers see all K draws together.

What does not depend on the draw (the input, a deterministic stem, a skip connection around the first Bayesian layer)
has no dimension K and is computed once. Everything else has one, which vmap keeps apart from the network's own
dimensions: the network runs on the shapes it expects, whatever it does with them. `torch.vmap` has rules for torch's
functions; a Bayesian layer steps out of it (`folded`), works on tensors (K, ...), and steps in again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import (  # type: ignore[attr-defined]
    _add_batch_dim,
    _set_vmap_fallback_warning_enabled,
    get_unwrapped,
    is_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from bnn.nn.draw import Draw, open_draw


def run_folded(call: Callable[[Any], Any], draw: Draw, x: Any, dims: Any = None) -> Any:
    """What `call(x)` returns under each of the K draws, stacked along a new dimension 0, in one pass.

    Args:
        dims: 0 where draw k gets the k-th part of a tensor in x, None where all get the whole, nested like x.
    """

    structure: Any = None
    leaves: list[Any] = []

    def one(token: Tensor, own: Any) -> tuple[Tensor, ...]:
        nonlocal structure, leaves
        draw.token = token
        leaves, structure = tree_flatten(call(own))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))  # vmap returns tensors only

    with open_draw(draw), _quietly(), _Samplewise(draw):
        stacked = iter(torch.vmap(one, in_dims=(0, dims), randomness="different")(torch.arange(draw.count), x))
    return tree_unflatten([next(stacked) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings about functions that vmap runs in a loop of its own: they are right, and rarely matter."""
    _set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_warning_enabled(True)


def folded(function: Callable[[Tensor], Tensor], input: Tensor, draw: Draw) -> Tensor:
    """Applies `function` to the input of all draws together: (K, ...), or (1, ...) where they share it, to (K, ...)."""
    if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise RuntimeError("gradient checkpointing runs parts of the network again, one draw at a time")
    level = maybe_get_level(draw.token)
    draw.shared = not (is_batchedtensor(input) and maybe_get_level(input) == level)
    x = input[None] if draw.shared else get_unwrapped(input).movedim(maybe_get_bdim(input), 0)
    with temporarily_pop_interpreter_stack(), torch._C.DisableTorchFunction():  # `_Samplewise` has no say in here
        y = function(x)
    return _add_batch_dim(y, 0, level)


# Functions of independent inputs: K draws of N inputs are K N inputs, which is faster than vmap's own rules.
_SAMPLEWISE = {F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.group_norm}


class _Samplewise(TorchFunctionMode):
    """Leads some functions around vmap while draws are folded."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and is_batchedtensor(args[0]):
            return folded(lambda x: _batch_norm(x, *args[1:], **kwargs), args[0], self.draw)
        if func is Tensor.contiguous and kwargs and args[0].ndim in (4, 5) and is_batchedtensor(args[0]):
            return folded(lambda x: _merged(lambda y: y.contiguous(**kwargs), x), args[0], self.draw)
        if func in _SAMPLEWISE and is_batchedtensor(args[0]):
            return folded(lambda x: _merged(lambda y: func(y, *args[1:], **kwargs), x), args[0], self.draw)
        if func in _VIEWS and is_batchedtensor(args[0]) and not _is_dtype(args, kwargs):
            return _reshaped(*args, **kwargs)
        return func(*args, **kwargs)


# Outputs of folded convolutions have the channels last in memory, where plain ones can be viewed.
_VIEWS = {Tensor.view, Tensor.view_as}


def _is_dtype(args: Any, kwargs: Any) -> bool:
    return "dtype" in kwargs or (len(args) > 1 and isinstance(args[1], torch.dtype))


def _reshaped(x: Tensor, *shape: Any, size: Any = None, other: Tensor | None = None) -> Tensor:
    """`x.view(...)` and `x.view_as(...)` for any memory layout."""
    if other is None and shape and isinstance(shape[0], Tensor):
        other = shape[0]
    return x.reshape(other.shape) if other is not None else x.reshape(size) if size is not None else x.reshape(*shape)


def _merged(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` on K draws of N inputs (K, N, ...) as K N inputs."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _batch_norm(x: Tensor, mean: Tensor | None, var: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
    """Batch normalisation of K draws (K, N, ...): by the batch's own statistics each draw is a batch."""
    by_batch = kwargs["training"] if "training" in kwargs else args[2] if len(args) > 2 else False
    if not by_batch:
        return _merged(lambda y: F.batch_norm(y, mean, var, *args, **kwargs), x)
    return torch.stack([F.batch_norm(draw, mean, var, *args, **kwargs) for draw in x])
