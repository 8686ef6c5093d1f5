"""Taking back what was done to a network when a later step fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def unchanged_on_error(network: nn.Module, written: Iterable[str]) -> Iterator[None]:
    """If the block raises, whatever it is, `network` is as it was: classes, attributes, tensors, hooks and modes.

    Args:
        written: names of the parameters and buffers that the block may write into; they are copied before.
    """
    names = set(written)
    modules = [(module, type(module), _contents(module)) for module in network.modules()]
    tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    values = [(tensor, tensor.detach().clone()) for name, tensor in tensors if name in names and not is_lazy(tensor)]
    flags = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    try:
        yield
    except BaseException:
        for module, kind, contents in modules:
            _restore_(module, kind, contents)
        for parameter, trains in flags:
            if not is_lazy(parameter):
                parameter.requires_grad_(trains)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        raise


def _contents(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Every attribute of a module, with a copy of what it holds if it is a dict, list or set: handles keep the dict."""
    if isinstance(module, torch.jit.ScriptModule):  # its attributes are not in Python, and nothing here changes them
        return {}
    return {
        name: (one, one.copy() if isinstance(one, dict | list | set) else None) for name, one in vars(module).items()
    }


def _restore_(module: nn.Module, kind: type[nn.Module], contents: dict[str, tuple[Any, Any]]) -> None:
    if not contents:
        return
    module.__class__ = kind
    own = vars(module)
    own.clear()
    for name, (value, held) in contents.items():
        own[name] = value
        if isinstance(value, dict | set):
            value.clear()
            value.update(held)
        elif isinstance(value, list):
            value[:] = held
