"""Likelihoods by name, as configurations and the command line spell them. Imports no torch.

A likelihood of the library is the file of its name in this folder, imported when it is first asked for; one of the
user's own is known from its definition on.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnn._common.text import nearest

TASKS = ("classification", "multilabel", "regression")
AUTO = "auto"  # of a recipe: validation data choose among CHOICE, where there is one
CHOICE = {"regression": ("gaussian", "heteroscedastic")}  # the first is the usual one
DEFAULTS = {"classification": "categorical", "regression": "gaussian"}  # by the task of a data set
_OTHER_FILES = {"base", "noise", "predictions", "registry"}
_REGISTERED: dict[str, Any] = {}  # classes by name


def register(cls: Any, needed: Sequence[str]) -> None:
    """Takes up a likelihood that is being defined.

    Args:
        needed: the methods it has not filled.

    Raises:
        TypeError: it is unfinished, or another one has its name.
    """
    if not isinstance(cls.name, str) or not cls.name:
        raise TypeError(f"{cls.__name__}.name must be a word, as 'gaussian'; got {cls.name!r}")
    if cls.task not in TASKS:
        raise TypeError(f"{cls.__name__}.task must be one of {list(TASKS)}, got {cls.task!r}")
    if needed:
        raise TypeError(f"the likelihood {cls.name!r} is unfinished: {cls.__name__} must define {', '.join(needed)}")
    before = _REGISTERED.get(cls.name)
    if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"there is a likelihood {cls.name!r} already, {before.__module__}.{before.__qualname__}")
    _REGISTERED[cls.name] = cls


def names(task: str | None = None) -> list[str]:
    """The names of all likelihoods, or of those for one task (which imports them)."""
    files = {one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)])} - _OTHER_FILES
    found = sorted(files | _REGISTERED.keys())
    return found if task is None else [name for name in found if class_of(name).task == task]


def class_of(name: str) -> Any:
    """The class of this name; ValueError for an unknown one."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in names():
        raise ValueError(
            f"unknown likelihood {name!r}{nearest(name, names())}; expected one of {names()} or a callable "
            "(one of your own is known once the file that defines it is imported)"
        )
    importlib.import_module(f"bnn.likelihoods.{name}")
    return _REGISTERED[name]


def get(likelihood: str | Callable[..., Any]) -> Callable[..., Any]:
    """The likelihood of that name with its default options, or the callable itself.

    >>> get("categorical")
    Categorical()
    """
    if isinstance(likelihood, str):
        return class_of(likelihood)()
    if isinstance(likelihood, type):
        raise TypeError(f"likelihood is the class {likelihood.__name__}: pass an object, {likelihood.__name__}()")
    if not callable(likelihood):
        raise TypeError(
            f"likelihood must be one of {names()} or a callable (output, target) -> negative log-likelihood, "
            f"got {type(likelihood).__name__}"
        )
    return likelihood


def for_task(name: str | None, task: str, targets: int = 1, log: bool = False) -> Any:
    """The likelihood of this name, or for None and "auto" the usual one of the task.

    Args:
        targets: how many real ones there are, each of which gets a noise of its own.
        log: whether they are logarithms of what is to be predicted.
    """
    found = class_of(DEFAULTS[task] if name in (None, AUTO) else str(name)).of(targets)
    return found.of_logs() if log else found


def from_record(stored: Mapping[str, Any]) -> Any:
    """What `bnn.likelihoods.base.record` wrote; None for a callable of the user's own, which has no name."""
    if stored["name"] is None:
        return None
    options = {key: value for key, value in stored.items() if key not in ("name", "learned") and value is not None}
    found = class_of(stored["name"])(**options)
    if stored.get("learned"):
        found.learned_(stored["learned"])
    return found
