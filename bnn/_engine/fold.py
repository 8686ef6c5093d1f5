"""K draws in one pass: `torch.vmap` runs the network once, and Bayesian layers see all K draws together.

What does not depend on the draw (the input, a deterministic stem, a skip connection around the first Bayesian layer)
has no dimension K and is computed once. Everything else has one, which vmap keeps apart from the network's own
dimensions: the network runs on the shapes it expects, whatever it does with them. `torch.vmap` has rules for torch's
functions; a Bayesian layer steps out of it (`folded`), works on tensors (K, ...), and steps in again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from bnn._engine import recompute
from bnn._engine.call import NotLast, TooLarge
from bnn._engine.draw import Draw
from bnn._engine.forward import End, Forward, eager_around, forward_of, open_forward
from bnn._engine.inputs import explain_names, modules_of
from bnn._engine.members import Drawing
from bnn._engine.noise import unwrapped
from bnn._engine.unused import warn_outside

try:  # names that torch does not promise: a faster way out of vmap than its public one
    from torch._C._functorch import (  # type: ignore[attr-defined]
        _add_batch_dim,
        _remove_batch_dim,
        _set_vmap_fallback_warning_enabled,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
        get_unwrapped,
        is_batchedtensor,
        maybe_get_bdim,
        maybe_get_level,
    )
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    FAST = True
except ImportError:
    FAST = False


# What a user's own layer raises when it is wrong; vmap, where it cannot proceed, raises other errors.
MISTAKES = (TypeError, AttributeError, KeyError, IndexError)


ONE_AT_A_TIME = "gradient checkpointing runs parts of the network again, one draw at a time"


class FoldingWarning(UserWarning):
    """Draws ran one after the other because the network cannot run them in one pass."""


# ---- running ---------------------------------------------------------------------------------------------------------


def call(network: nn.Module, x: Any) -> Any:
    """The output of `network` at `x`: a tuple or list holds positional arguments, a dict keyword arguments."""
    if isinstance(x, Mapping):
        try:
            return network(**x)
        except TypeError as error:
            explain_names(x, error)
            raise
    if isinstance(x, tuple | list) and not isinstance(x, PackedSequence):
        return network(*x)
    return network(x)


def in_one_pass(network: nn.Module, x: Any, draw: Draw, dims: Any = None) -> Any:
    """The outputs (K, N, ...) of `network` at `x` under the K draws of `draw`, stacked along a new dimension 0.

    Args:
        dims: 0 where draw k gets the k-th part of a tensor in x, None where all get the whole, nested like x.
    """
    network, tokens = unwrapped(network), torch.arange(draw.count)
    forward = Forward(draw, root=network, pinned=True)
    draw.folded = True
    with open_forward(forward), _quietly(), _Samplewise(forward):
        if FAST and dims is None:
            return _vmapped_fast(network, x, forward, tokens)
        structure: Any = None
        leaves: list[Any] = []

        def one(token: Tensor, own: Any) -> tuple[Tensor, ...]:
            nonlocal structure, leaves
            forward.token = token
            leaves, structure = tree_flatten(call(network, own))
            return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))  # vmap returns tensors only

        stacked = iter(torch.vmap(one, in_dims=(0, dims), randomness="different")(tokens, x))
    return tree_unflatten([next(stacked) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)


def _vmapped_fast(network: nn.Module, x: Any, forward: Forward, tokens: Tensor) -> Any:
    """What `torch.vmap` does, without looking through the arguments, for an input that all draws share."""
    k = len(tokens)
    level = _vmap_increment_nesting(k, "different")
    try:
        forward.token = _add_batch_dim(tokens, 0, level)
        output = call(network, x)
        if isinstance(output, Tensor):
            return _remove_batch_dim(output, level, k, 0)
        leaves, structure = tree_flatten(output)
        stacked = [_remove_batch_dim(leaf, level, k, 0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tree_unflatten(stacked, structure)
    finally:
        _vmap_decrement_nesting()


def one_by_one(network: nn.Module, inputs: Iterable[Any], draws: Iterable[Draw]) -> list[Any]:
    """The outputs of single draws, each at its input, one pass each."""
    outputs = []
    for x, draw in zip(inputs, draws, strict=True):
        if draw.pinned and torch.is_grad_enabled():
            torch.randint(2, (), device="cpu")  # gradient checkpointing tells forwards apart by the random state
        with open_forward(Forward(draw, root=unwrapped(network), pinned=True)):
            outputs.append(call(network, x))
    return outputs


def of_last_layer(network: nn.Module, x: Any, draw: Draw) -> Tensor:
    """The outputs (K, N, ...) of a network that ends with the one layer that draws: what comes before runs once.

    Raises:
        NotLast: something follows the layer, or what comes before it is random; random states are as before.
    """
    network = unwrapped(network)
    forward = Forward(draw, root=network, pinned=True)
    forward.ends, draw.folded = [], True
    before = _random_states()
    with open_forward(forward):
        output = call(network, x)
    if len(forward.ends) == 1 and all(map(torch.equal, before, _random_states())):
        end = forward.ends[0]
        if is_same(output, end.first, end.mark):
            return end.outputs
    torch.set_rng_state(before[0])
    if len(before) > 1:
        torch.cuda.set_rng_state(before[1])
    raise NotLast


def _random_states() -> list[Tensor]:
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def mark_of(made: Tensor) -> Any:
    """What tells whether a tensor is changed in place later: its version; a copy in inference mode, which has none."""
    return made.clone() if made.is_inference() else made._version


def is_same(output: Any, made: Tensor, mark: Any) -> bool:
    """Whether what a network returned is the tensor `made` in it, unchanged since its `mark_of`."""
    if not isinstance(output, Tensor) or output.shape != made.shape or output.stride() != made.stride():
        return False
    if output.data_ptr() != made.data_ptr() or output.dtype != made.dtype:
        return False
    return torch.equal(made, mark) if isinstance(mark, Tensor) else made._version == mark


def warn_unfolded(reason: Exception) -> None:
    """Says why draws did not run in one pass, at the line outside this library that asked for them."""
    message = str(reason).split("\n")[0] or "no message"
    warn_outside(
        f"draws ran one after the other: the network cannot run them in one pass ({type(reason).__name__}: {message})",
        FoldingWarning,
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings about functions that vmap runs in a loop of its own: they are right, and rarely matter."""
    if not FAST:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
            yield
        return
    _set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_warning_enabled(True)


def join_draws(outputs: list[Tensor]) -> Tensor:
    """Outputs of some draws each, along dimension 0, in the memory layout that they have."""
    if len(outputs) == 1:
        return outputs[0]
    dims = range(1, outputs[0].ndim)
    order = sorted(dims, key=outputs[0].stride, reverse=True)
    joined = torch.cat([output.permute(0, *order) for output in outputs])
    return joined.permute(0, *(1 + order.index(dim) for dim in dims))


# ---- stepping out of vmap --------------------------------------------------------------------------------------------


def folded(function: Callable[[Tensor], Tensor], input: Tensor, forward: Forward) -> Tensor:
    """Applies `function` to the input of all draws together: (K, ...), or (1, ...) where they share it, to (K, ...)."""
    if recompute.watched():
        raise RuntimeError(ONE_AT_A_TIME)
    if FAST:
        return _folded_fast(function, input, forward.token)
    result: Tensor = _StepOut.apply(input, forward.token, function, False)  # type: ignore[no-untyped-call]
    return result


def _samplewise(function: Callable[[Tensor], Tensor], input: Tensor, forward: Forward) -> Tensor:
    """Applies `function` (K, ...) -> (K, ...) to the input of all draws together, where they do not share it."""
    if not FAST:
        result: Tensor = _StepOut.apply(input, forward.token, function, True)  # type: ignore[no-untyped-call]
        return result
    assert forward.token is not None
    if is_batchedtensor(input) and maybe_get_level(input) == maybe_get_level(forward.token):
        return _folded_fast(function, input, forward.token)
    return function(input[None])[0]


class _StepOut(torch.autograd.Function):
    """vmap hands a function with a rule of its own the tensors of all lanes. That rule is all there is to this one."""

    @staticmethod
    def forward(input: Tensor, token: Tensor, function: Any, samplewise: bool) -> Tensor:
        raise RuntimeError("only torch.vmap runs this")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        raise RuntimeError("only torch.vmap runs this")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], input: Tensor, token: Tensor, function: Any, samplewise: bool
    ) -> tuple[Tensor, int | None]:
        with torch._C.DisableTorchFunction():  # `_Samplewise` has no say in here
            if in_dims[0] is not None:
                return function(input.movedim(in_dims[0], 0)), 0
            return (function(input[None])[0], None) if samplewise else (function(input[None]), 0)


def _folded_fast(function: Callable[[Tensor], Tensor], input: Tensor, token: Any) -> Tensor:
    """The same through private names: less time per layer and call."""
    level = maybe_get_level(token)
    shared = not (is_batchedtensor(input) and maybe_get_level(input) == level)
    x = input[None] if shared else get_unwrapped(input).movedim(maybe_get_bdim(input), 0)
    with temporarily_pop_interpreter_stack(), torch._C.DisableTorchFunction():
        y = function(x)
    result: Tensor = _add_batch_dim(y, 0, level)
    return result


# ---- around vmap's own rules -----------------------------------------------------------------------------------------

# Functions of independent inputs: K draws of N inputs are K N inputs, which is faster than vmap's own rules.
_SAMPLEWISE = {F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.group_norm}

# Outputs of folded convolutions have the channels last in memory, where plain ones can be viewed.
_VIEWS = {Tensor.view, Tensor.view_as}

_LED = {F.batch_norm, Tensor.contiguous} | _SAMPLEWISE


class _Samplewise(TorchFunctionMode):
    """Leads some functions around vmap while draws are folded."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.pass_ = forward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if recompute.watched():
            raise RuntimeError(ONE_AT_A_TIME)
        if func in _LED:
            x = args[0]
            if func is F.batch_norm:
                return _samplewise(lambda x: _batch_norm(x, *args[1:], **kwargs), x, self.pass_)
            if func in _SAMPLEWISE:
                return _samplewise(lambda x: _merged(lambda y: func(y, *args[1:], **kwargs), x), x, self.pass_)
            if kwargs and x.ndim in (4, 5):
                return _samplewise(lambda x: _merged(lambda y: y.contiguous(**kwargs), x), x, self.pass_)
        elif func in _VIEWS and not _is_dtype(args, kwargs):
            return _reshaped(*args, **kwargs)
        return func(*args, **kwargs)


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


class Statistics:
    """Running statistics of BatchNorm in train mode, kept so that a pass that has to start again leaves no trace."""

    def __init__(self, network: nn.Module) -> None:
        modules = [m for m in modules_of(network) if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        self._kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]

    def restore_(self) -> None:
        """Puts them back, in place."""
        with torch.no_grad():
            for buffer, value in self._kept:
                buffer.copy_(value)


def counts_batches(network: nn.Module) -> bool:
    """Whether some BatchNorm averages its statistics by the number of batches, which one pass would miscount."""
    return any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.momentum is None
        for m in modules_of(network)
    )


# ---- modules that take part in draws ---------------------------------------------------------------------------------


class Drawn(Drawing):
    """A module that sees all K draws together, whoever runs it: a forward, `torch.vmap`, checkpointing, the compiler.

    A subclass fills `output`.
    """

    options: Any

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        """The outputs (K, ...) under K draws, for an `input` (K, ...), or (1, ...) where all draws see the same."""
        raise NotImplementedError

    def entries_per_draw(self, input: Tensor, draw: Draw) -> int:
        """Numbers that each of several draws in one pass takes, as far as they are known beforehand."""
        return 0

    def folded_output(self, input: Tensor, draw: Draw) -> Tensor:
        """`output`, refused before it takes place where K draws would take too much memory."""
        limit, k = draw.call.limit, draw.count
        if limit is not None and k > 1:
            size = self.entries_per_draw(input, draw) * input.element_size()  # bytes
            if k * size > limit:
                raise TooLarge(max(1, limit // size))
        return self.output(input, draw)

    def forward(self, input: Tensor) -> Tensor:
        """The output under a draw: a different one at every call of the network."""
        if eager_around():
            return _outside_the_graph(self, input)
        record = recompute.note(self)
        forward = forward_of(self)
        forward.enter(self)
        draw = forward.draw
        if forward.token is not None:  # K draws in one pass: all of them come together here
            return folded(lambda x: self.folded_output(x, draw), input, forward)
        if forward.ends is not None and self.is_point():  # before the last layer: as a plain one, memory layout and all
            return self.output(input.unsqueeze(0), draw.only(0, 1, folded=False)).squeeze(0)
        if forward.ends is not None:  # this is the last layer: the network ends with the first of all draws
            outputs = self.output(input.unsqueeze(0), draw)
            forward.ends.append(End(outputs, outputs[0], mark_of(outputs)))
            return forward.ends[-1].first
        if record is not None:
            draw = record.of(draw, took_a_number=forward.root is None).apart_from_others(draw)
        output = self.output(input.unsqueeze(0), draw).squeeze(0)  # views without a copy in backward
        recompute.keep(record, output)
        return output


def _run(module: Drawn, input: Tensor) -> Tensor:
    return module.forward(input)


# A compiled child of a network that is not compiled takes part in a forward that torch.compile cannot look into.
# Without this name, which torch does not promise, compiling such a child fails.
_outside_the_graph = getattr(torch, "_disable_dynamo", lambda function: function)(_run)
