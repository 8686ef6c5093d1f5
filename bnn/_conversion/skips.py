"""Residual blocks: which layers' outputs are added to something else, after BatchNorm or as they are, and to what.

What is added to a layer's output (the skip) carries the errors of all layers before. The last layer of a block can
repair them: its target is y + (skip - skip') / scale, with the scale that BatchNorm multiplies y by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ADDS = ("add", "add_", "__add__", "__iadd__", "__radd__")
SMALL = 0.05  # of the mean |scale|: a channel that BatchNorm all but removes cannot repair anything


class Skip(NamedTuple):
    """What is added to a layer's output."""

    tensor: Tensor
    scale: Tensor | None  # (channels,), of the BatchNorm between; None without one


class Direct(NamedTuple):
    """A tensor that is a layer's output, or its BatchNorm's."""

    layer: nn.Module
    scale: Tensor | None

    @property
    def scaled(self) -> bool:
        """Whether BatchNorm lies between."""
        return self.scale is not None


Found = Callable[[nn.Module, Skip], None]


class SkipWatch(TorchFunctionMode):
    """Follows the outputs of layers through every function of torch, and tells `found` what is added to them."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found
        self.direct: dict[int, Direct] = {}
        self.sources: dict[int, frozenset[nn.Module]] = {}  # the layers that a tensor depends on
        self.alive: list[Tensor] = []  # so that no id comes twice
        self.uses: Counter[nn.Module] = Counter()  # how many functions take a layer's output
        self.norms: dict[nn.Module, Tensor] = {}  # the running mean of the BatchNorm that does

    def mark(self, layer: nn.Module, output: Tensor, input: Tensor) -> None:
        """`output` is what `layer` made of `input`."""
        self._note(output, self.sources.get(id(input), frozenset()) | {layer}, Direct(layer, None))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = list(_tensors([args, list(kwargs.values())]))
        if name in ADDS and len(args) == 2 and kwargs.get("alpha", 1) == 1:
            self._add(*args)
        sources = frozenset().union(*(self.sources.get(id(one), frozenset()) for one in given))
        before = self.direct.get(id(args[0])) if args and name in ("batch_norm", "dropout") else None
        result = func(*args, **kwargs)
        made = list(_tensors(result))
        if made:  # else it was asked for its shape, say
            self.uses.update(
                direct.layer for one in given if (direct := self.direct.get(id(one))) and not direct.scaled
            )
        if name == "batch_norm" and before is not None:
            before = None if before.scaled else self._normalised(before, args, kwargs)
        for one in made:
            if sources:
                self._note(one, sources, before)
        return result

    def _normalised(self, before: Direct, args: Any, kwargs: Any) -> Direct | None:
        """The output of BatchNorm in evaluation mode, with its scale gamma / sqrt(var + eps)."""
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = dict(zip(names, args, strict=False)) | kwargs
        mean, var = given.get("running_mean"), given.get("running_var")
        if mean is None or var is None or given.get("training"):
            return None
        self.norms[before.layer] = mean
        scale = (var + given.get("eps", 1e-5)).rsqrt()
        return Direct(before.layer, scale if given.get("weight") is None else scale * given["weight"].detach())

    def _note(self, tensor: Tensor, sources: frozenset[nn.Module], direct: Direct | None) -> None:
        self.alive.append(tensor)
        self.sources[id(tensor)] = sources
        if direct is not None:
            self.direct[id(tensor)] = direct
        else:
            self.direct.pop(id(tensor), None)  # changed in place

    def _add(self, one: Any, other: Any) -> None:
        for output, skip in ((one, other), (other, one)):
            direct = self.direct.get(id(output))
            apart = isinstance(skip, Tensor) and isinstance(output, Tensor) and skip.shape == output.shape
            if direct is not None and apart and direct.layer not in self.sources.get(id(skip), frozenset()):
                self.found(direct.layer, Skip(skip, direct.scale))


class _Seen(BaseException):
    """Ends the run of a block once its skip is known."""


def skip_of(block: nn.Module, args: Any, kwargs: Any, layer: nn.Module, watched: Callable[[SkipWatch], Any]) -> Skip:
    """What `block`, run anew on its inputs, adds to the output of `layer`.

    Args:
        watched: a context in which the layers' forwards mark their outputs for a watch.
    """
    seen: list[Skip] = []

    def found(one: nn.Module, skip: Skip) -> None:
        if one is layer:
            seen.append(skip)
            raise _Seen

    watch = SkipWatch(found)
    try:
        with watched(watch), watch:
            block.forward(*args, **kwargs)
    except _Seen:
        pass
    return seen[0] if seen else Skip(torch.zeros(()), None)


class Running(NamedTuple):
    """The modules of a network in a forward."""

    stack: list[nn.Module]  # that are running, innermost last
    ended: list[nn.Module]  # that have run, in the order in which they ended


@contextmanager
def running_modules(network: nn.Module) -> Iterator[Running]:
    """Filled while the block lasts."""
    running = Running([], [])
    handles = []

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.ended.append(running.stack.pop())

    for module in network.modules():
        handles.append(module.register_forward_pre_hook(lambda module, args: running.stack.append(module)))
        handles.append(module.register_forward_hook(leave, always_call=True))  # also where a network catches an error
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def repaired(y: Tensor, skip: Skip, other: Tensor) -> Tensor:
    """The target y (N, channels, ...) that makes up for another skip than the original one."""
    if skip.tensor.shape != y.shape or other.shape != y.shape:
        return y
    if skip.scale is None:
        return y + (skip.tensor - other)
    size = skip.scale.abs()
    inverse = torch.where(size > SMALL * size.mean(), 1 / skip.scale, 0.0)
    return y + (skip.tensor - other) * inverse.reshape(-1, *[1] * (y.ndim - 2))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors in lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
