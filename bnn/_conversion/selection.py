"""Which layer of a network gets which posterior: resolves the `inference` argument of `bayesianize_`.

Keys of an inference dict name modules, in order of precedence: the module object, its name, its index among
`network.named_modules()`, a negative index, its class, its class name, a glob pattern on its name (of several, the one
with more literal characters). A key that names a container covers every layer below it that no more specific key names.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from bnn._common.text import nearest
from bnn.nn.base import layer_types

Key = Any  # nn.Module | str | int | type[nn.Module]
Inference = str | Mapping[Key, Any]


class Choice(NamedTuple):
    """What was chosen for one module."""

    name: str
    module: nn.Module
    family: str
    options: dict[str, Any]


def select(network: nn.Module, inference: Mapping[Key, Any]) -> list[Choice]:
    """The choice for every module of `network` that some key covers, in the order of `named_modules()`.

    Raises:
        ValueError: a key matches nothing that has layers, or its value is no family name or dict with "inference".
    """
    entries = {key: _entry(key, value) for key, value in inference.items()}
    tree = _Tree(network)
    for key, entry in entries.items():
        named = [module for module in tree.modules if tree.rank(key, module) is not None]
        if not named:
            raise ValueError(tree.no_match(key))
        if entry is not None and not any(isinstance(m, tuple(layer_types())) for top in named for m in top.modules()):
            known = [layer_type.__name__ for layer_type in layer_types()]
            kinds = sorted({type(module).__name__ for module in named})
            raise ValueError(f"inference key {_show(key)} names {kinds}, with nothing to convert: no layer of {known}")
    chosen, unused = [], {key: entry for key, entry in entries.items() if entry is not None}
    for name, module in network.named_modules():
        key = tree.covering_key(entries, module)
        if key is not None and isinstance(module, tuple(layer_types())):
            unused.pop(key[0], None)
        entry = None if key is None else entries[key[0]]
        if entry is not None:
            chosen.append(Choice(name, module, *entry))
    if unused:
        shadowed = ", ".join(map(_show, unused))
        message = f"inference keys without effect: {shadowed}; other keys name their layers more specifically"
        warnings.warn(message, UserWarning, stacklevel=4)
    return chosen


def _entry(key: Key, value: Any) -> tuple[str, dict[str, Any]] | None:
    """(family, options) of one item of the dict; None leaves the layer as it is."""
    if isinstance(value, str):
        return value, {}
    if value is None or (isinstance(value, Mapping) and value.get("inference", "") is None):
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("inference"), str):
        raise ValueError(
            f"inference[{_show(key)}] must be a family name, a dict whose 'inference' is one, or None; got {value!r}"
        )
    return value["inference"], {name: option for name, option in value.items() if name != "inference"}


class _Tree:
    """The modules of a network with all their names, indices and containers."""

    def __init__(self, network: nn.Module) -> None:
        self.modules = list(network.modules())
        self.index = {module: i for i, module in enumerate(self.modules)}
        self.names: dict[nn.Module, list[str]] = {module: [] for module in self.modules}
        self.by_name: dict[str, nn.Module] = {}
        for name, module in network.named_modules(remove_duplicate=False):  # a tied layer has several names
            self.names[module].append(name)
            self.by_name[name] = module

    def rank(self, key: Key, module: nn.Module) -> int | None:
        """How specifically `key` names `module`: 0 is the most specific, None not at all."""
        number = None if isinstance(key, str) and key in self.by_name else _as_index(key)  # "0" may be a name
        exact = [
            key is module,
            isinstance(key, str) and key in self.names[module],
            number is not None and number == self.index[module],
            number is not None and number == self.index[module] - len(self.modules),
            isinstance(key, type) and type(module) is key,
            isinstance(key, str) and type(module).__name__ == key,
            isinstance(key, str) and _is_glob(key) and any(fnmatch.fnmatchcase(n, key) for n in self.names[module]),
        ]
        return exact.index(True) if True in exact else None

    def covering_key(self, keys: Mapping[Key, Any], module: nn.Module) -> tuple[Key] | None:
        """The most specific key for `module`, in a tuple: one on the module itself, else on the nearest container."""
        for node in [module, *self.containers(module)]:
            ranked = [(rank, key) for key in keys if (rank := self.rank(key, node)) is not None]
            if ranked:
                return (min(ranked, key=lambda pair: (pair[0], -_literal(pair[1])))[1],)
        return None

    def containers(self, module: nn.Module) -> list[nn.Module]:
        """What contains `module`, nearest first."""
        found = []
        for name in self.names[module]:
            while name:
                name = name.rpartition(".")[0]
                found.append(self.by_name[name])
        return found

    def no_match(self, key: Key) -> str:
        """The message for a key that names nothing."""
        classes = {type(module).__name__ for module in self.modules}
        hint = nearest(key, [*self.by_name, *classes]) if isinstance(key, str) else ""
        return (
            f"inference key {_show(key)} matches no module of this network{hint}. Expected a module, a name among "
            f"named_modules(), an index below {len(self.modules)}, a class such as nn.Linear, or a glob as 'layer4.*'"
        )


def _as_index(key: Key) -> int | None:
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    return int(key) if isinstance(key, str) and re.fullmatch(r"-?\d+", key) else None  # JSON has no integer keys


def _literal(key: Key) -> int:
    """How many characters of a glob are no wildcards: of two that match, the one with more is more specific."""
    return len(re.sub(r"\[.*?\]|[*?]", "", key)) if isinstance(key, str) and _is_glob(key) else 0


def _is_glob(key: str) -> bool:
    return any(char in key for char in "*?[")


def _show(key: Key) -> str:
    return (
        key.__name__
        if isinstance(key, type)
        else f"of {type(key).__name__}"
        if isinstance(key, nn.Module)
        else repr(key)
    )
