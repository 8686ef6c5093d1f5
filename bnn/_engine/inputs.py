"""What goes into a network and comes out of it, a tensor or a tuple or dict of tensors, and the mode it runs in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


def check_network(network: Any) -> None:
    """Raises TypeError unless `network` is a module."""
    if not isinstance(network, nn.Module):
        got = (
            f"the class {network.__name__}: make an object of it"
            if isinstance(network, type)
            else type(network).__name__
        )
        hint = " (bayesianize_ works in place and returns None: pass the network itself)" if network is None else ""
        raise TypeError(f"expected a network, a torch.nn.Module, got {got}{hint}")


def device_of(network: nn.Module) -> torch.device:
    """The device of the network's first tensor."""
    tensor = next(chain(network.parameters(), network.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def modules_of(network: nn.Module) -> list[nn.Module]:
    """`network.modules()`, three times as fast: a prediction looks through them several times."""
    found: dict[nn.Module, None] = {}

    def walk(module: nn.Module) -> None:
        found[module] = None
        for child in module._modules.values():
            if child is not None and child not in found:
                walk(child)

    walk(network)
    return list(found)


def inputs_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The number of inputs: the length of the first tensor among the arguments; None if there is none."""
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    return None if first is None or first.ndim == 0 else first.shape[0]


def number_of_inputs(x: Any) -> int | None:
    """The length of dimension 0 of the first tensor in `x`; None if there is none."""
    parts = [x] if isinstance(x, Tensor) else list(x.values()) if isinstance(x, Mapping) else x
    return inputs_of(parts, {}) if isinstance(parts, tuple | list) else None


def explain_names(x: Mapping[str, Any], error: TypeError) -> None:
    """Raises TypeError with what to do, if `error` is of a forward that does not take a name of `x` as a keyword."""
    if any(f"forward() got an unexpected keyword argument {name!r}" in str(error) for name in x):
        raise TypeError(
            f"{error}; a dict of inputs is passed as keyword arguments, here {', '.join(map(str, x))}. Where forward "
            "takes the dict itself, put the network into a module of your own, and convert and use that one: "
            "`def forward(self, **inputs): return self.network(inputs)`"
        ) from error


def batches_of(x: Any, size: int | None) -> list[Any]:
    """`x` in parts of `size` along dimension 0; None is one part."""
    if size is None:
        return [x]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"batch_size must be an integer >= 1 or None, got {size!r}")
    n = len(_first_tensor(x))
    return [_cut(x, n, start, size) for start in range(0, max(n, 1), size)]


def join_outputs(parts: list[Any], join: Any) -> Any:
    """Tensors joined by `join` (`torch.cat`, `torch.stack`), also inside tuples and dicts."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: join_outputs([part[name] for part in parts], join) for name in first}
    if isinstance(first, tuple | list):
        return tuple(join_outputs(list(column), join) for column in zip(*parts, strict=True))
    if first is None:
        return None
    if not isinstance(first, Tensor):
        raise TypeError(f"the network returned a {type(first).__name__}; expected tensors, alone or in tuples or dicts")
    return join(parts)


def split_inputs(x: Any, n: int, count: int) -> list[Any]:
    """`x` in `count` parts: the k-th has every `count`-th row from k on of each tensor with n rows, the rest whole."""
    return [_map_rows(x, n, lambda tensor, k=k: tensor[k::count]) for k in range(count)]


def grouped(x: Any, n: int, count: int) -> tuple[Any, Any]:
    """`x` with its tensors of n rows as (count, n / count, ...), as `split_inputs` deals them, and which these are."""
    parts = _map_rows(x, n, lambda tensor: tensor.unflatten(0, (n // count, count)).transpose(0, 1))
    return parts, _map_rows(x, n, lambda tensor: 0, lambda other: None)


def _map_rows(x: Any, n: int, function: Any, other: Any = lambda value: value) -> Any:
    """`function` of every tensor with n rows, `other` of what else there is, nested like `x`."""
    if isinstance(x, Tensor):
        return function(x) if x.ndim and len(x) == n else other(x)
    if isinstance(x, Mapping):
        return {name: _map_rows(part, n, function, other) for name, part in x.items()}
    if isinstance(x, tuple | list) and not isinstance(x, PackedSequence):
        return type(x)(_map_rows(part, n, function, other) for part in x)
    return other(x)


def split_outputs(outputs: Any, count: int) -> list[Any]:
    """Outputs (K, ...) as a list of K, also inside tuples and dicts: the inverse of joining with `torch.stack`."""
    if isinstance(outputs, Mapping):
        parts = {name: split_outputs(part, count) for name, part in outputs.items()}
        return [{name: part[k] for name, part in parts.items()} for k in range(count)]
    if isinstance(outputs, tuple | list):
        columns = [split_outputs(part, count) for part in outputs]
        return [tuple(column[k] for column in columns) for k in range(count)]
    return [outputs[k] if isinstance(outputs, Tensor) else outputs for k in range(count)]


def _first_tensor(x: Any) -> Tensor:
    parts = [x] if isinstance(x, Tensor) else list(x.values()) if isinstance(x, Mapping) else list(x)
    tensor = next((part for part in parts if isinstance(part, Tensor)), None)
    if tensor is None:
        raise TypeError(f"expected a tensor, or a tuple or dict with one, got {type(x).__name__}")
    return tensor


def _cut(x: Any, n: int, start: int, size: int) -> Any:
    """Rows start to start + size of every tensor with n rows; what has another length goes along whole."""
    if isinstance(x, Tensor):
        return x[start : start + size] if x.ndim and len(x) == n else x
    if isinstance(x, Mapping):
        return {name: _cut(part, n, start, size) for name, part in x.items()}
    return tuple(_cut(part, n, start, size) for part in x) if isinstance(x, tuple | list) else x


@contextmanager
def same_mode_after(network: nn.Module) -> Iterator[None]:
    """Inside the block modes may change; afterwards, or after an error, they are what they were."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, which leaves modes alone; one look at the modules, as every prediction pays."""
    training = [module for module in modules_of(network) if module.training]
    if training:
        network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
