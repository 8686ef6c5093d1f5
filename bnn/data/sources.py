"""Data sources: every kind of data there is, declared once; importing the declarations imports no torch.

A source joins by one declaration: an entry of the table at the end, which names functions without importing them, or
`@bnn.data.source(...)` on a reader. Recipes, `bayesianize train` and `predict`, and stored preparations read it there.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from bnn._common.text import nearest

if TYPE_CHECKING:
    from bnn.data.dataset import Data, Preparation

TEST, VALIDATION = 0.2, 0.1  # shares that are set aside where nothing is said
FLAGS = {  # of `bayesianize train` that say more about data, and the option of the reader that each gives
    "target": "target",
    "drop": "drop",
    "task": "task",
    "image_size": "size",
    "test": "test",
    "validation": "validation",
    "guarantee": "guarantee",
    "positive": "positive",
}

Reader = TypeVar("Reader", bound=Callable[..., Any])
Completing = Callable[[dict[str, Any], Callable[[str], None]], dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """One kind of data. A function may be given as "module:name", which is imported when it is needed.

    Args:
        kind: what a recipe calls it: {kind: where the data are, option: value}.
        title: for messages, as "a CSV file".
        reader: (where, **options) -> `Data`.
        preparations: {kind: class} of those it stores with a model; each has `to_dict`, with its kind, and `from_dict`.
        endings: of the files that `--data` takes for this kind, as ".csv".
        folders: whether `--data` takes a folder for this kind.
        flags: those of FLAGS that say more about it.
        needs: {option: what it is} of those that the reader cannot do without.
        complete: what `bayesianize train` adds to a description: (description, a function that tells the user) ->
            description; None adds the share of validation data.
        path: whether the data are at a path.
        again: whether `bayesianize predict` takes the very file that was trained on.
    """

    kind: str
    title: str
    reader: Callable[..., Any] | str
    preparations: Mapping[str, Any] = field(default_factory=dict)
    endings: tuple[str, ...] = ()
    folders: bool = False
    flags: tuple[str, ...] = ("test", "validation")
    needs: Mapping[str, str] = field(default_factory=dict)
    complete: Completing | str | None = None
    path: bool = True
    again: bool = True

    def __post_init__(self) -> None:
        if not self.kind.isidentifier():
            raise ValueError(f"a kind of data is one word, as 'csv'; got {self.kind!r}")
        for flag in self.flags:
            if flag not in FLAGS:
                raise ValueError(f"{self.kind}: unknown flag {flag!r}{nearest(flag, FLAGS)}; there are {list(FLAGS)}")
        for ending in self.endings:
            if not ending.startswith(".") or ending != ending.lower():
                raise ValueError(f"{self.kind}: an ending is written as '.csv', in lower case; got {ending!r}")

    def read(self, description: Mapping[str, Any]) -> Data:
        """The data that {kind: where, option: value} describes; an option that the reader does not have is an error."""
        options = dict(description)
        where = options.pop(self.kind)
        reader = found(self.reader)
        self._check(options, inspect.signature(reader).parameters)
        data: Data = reader(*(where if isinstance(where, list | tuple) else [where]), **options)
        return data

    def _check(self, options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> None:
        if any(one.kind is one.VAR_KEYWORD for one in known.values()):
            return  # the reader checks its own
        for name in options:
            if name not in known:
                hint = nearest(name, known)
                raise ValueError(f"data: {self.kind} has no option {name!r}{hint}; it has {list(known)[1:]}")
        for name, what in self.needs.items():
            if name not in options:
                raise ValueError(f'data: {self.kind} needs "{name}", {what}')

    def completed(self, description: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        """The description with the defaults filled in."""
        if self.complete is not None:
            added: dict[str, Any] = found(self.complete)(description, tell)
            return added
        return description if "validation" not in self.flags else {"validation": VALIDATION, **description}


SOURCES: dict[str, Source] = {}


def register(one: Source) -> Source:
    """Adds a source; one that takes the kind, an ending, the folders or a preparation of another is an error."""
    for other in SOURCES.values():
        shared = [ending for ending in one.endings if ending in other.endings]
        if one.kind == other.kind or shared or (one.folders and other.folders):
            what = "this kind" if one.kind == other.kind else shared[0] if shared else "folders"
            raise ValueError(f"data source {one.kind!r}: {what} is taken by {other.kind!r}, {other.title}")
        for kind, type_ in one.preparations.items():
            if other.preparations.get(kind, type_) != type_:
                raise ValueError(f"data source {one.kind!r}: {other.kind!r} has another preparation {kind!r}")
    SOURCES[one.kind] = one
    return one


def source(kind: str, title: str, *, preparation: Any = None, **fields: Any) -> Callable[[Reader], Reader]:
    """Declares the function below as the reader of a kind of data.

    Args:
        kind, title: see `Source`.
        preparation: the class that reads new inputs, with a `kind` of its own, `to_dict` and `from_dict`; None: one
            that is there already, as that of `bnn.data.arrays`.
        fields: the other fields of `Source`.
    """
    kinds = {} if preparation is None else {_checked(preparation).kind: preparation}

    def declared(reader: Reader) -> Reader:
        register(Source(kind, title, reader, kinds, **fields))
        return reader

    return declared


def _checked(preparation: Any) -> Any:
    lacking = [name for name in ("kind", "to_dict", "from_dict") if not hasattr(preparation, name)]
    if lacking:
        raise TypeError(f"a preparation has kind, to_dict and from_dict; {preparation!r} has no {lacking[0]}")
    return preparation


def source_of(description: Mapping[str, Any]) -> Source:
    """The source of a recipe's data, {kind: where, option: value}.

    >>> source_of({"csv": "houses.csv", "target": "price"}).title
    'a CSV file'
    """
    kinds = [kind for kind in SOURCES if kind in description]
    if len(kinds) != 1:
        raise ValueError(f'data must have one of {", ".join(SOURCES)}, as {{"name": "cifar10"}}; got {description}')
    return SOURCES[kinds[0]]


def source_at(path: str) -> Source | None:
    """The source that takes a folder, or files of this ending; None if none does.

    >>> source_at("tables/Houses.CSV").kind
    'csv'
    """
    ending = os.path.splitext(path)[1].lower()
    folder = os.path.isdir(path)
    return next((one for one in SOURCES.values() if (one.folders if folder else ending in one.endings)), None)


def preparation(stored: Mapping[str, Any]) -> Preparation:
    """The preparation that `to_dict` stored, by its "kind".

    >>> preparation({"kind": "images", "mean": [0.5], "sd": [0.25], "range": 255})
    ImageScaling(mean=(0.5,), sd=(0.25,), range=255.0)
    """
    if not isinstance(stored, Mapping):
        raise TypeError(f"expected the dict that a preparation's to_dict() gave, got a {type(stored).__name__}")
    known = {kind: type_ for one in SOURCES.values() for kind, type_ in one.preparations.items()}
    kind = stored.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"unknown kind of preparation {kind!r}; expected one of {sorted(known)}")
    read: Preparation = found(known[kind]).from_dict(stored)
    return read


def found(function: Any) -> Any:
    """A function or class; "module:name" is imported."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


register(
    Source(
        "name",
        "a named data set",
        "bnn.data.named_sets.load:load",
        {"images": "bnn.data.images:ImageScaling"},
        flags=("validation", "guarantee", "positive"),
        complete="bnn.data.named_sets.load:completed",
        path=False,
        again=False,
    )
)
register(
    Source(
        "csv",
        "a CSV file",
        "bnn.data.tables.csv_file:csv",
        {"table": "bnn.data.tables.preparation:TablePreparation"},
        endings=(".csv", ".tsv"),
        flags=("target", "drop", "task", "test", "validation", "guarantee", "positive"),
        needs={"target": "the name of the column to predict"},
        complete="bnn.data.tables.csv_file:completed",
    )
)
register(
    Source(
        "folder",
        "a folder of images",
        "bnn.data.image_folders:folder",
        {"folder": "bnn.data.image_files:FolderPreparation"},
        folders=True,
        flags=("image_size", "test", "validation", "guarantee"),
        complete="bnn.data.image_folders:completed",
    )
)
register(
    Source(
        "arrays",
        "an .npz file",
        "bnn.data.array_sets:arrays",
        {
            "array_images": "bnn.data.array_preparation:ArrayImages",
            "arrays": "bnn.data.array_preparation:ScaledInputs",
        },
        endings=(".npz",),
        flags=("task", "test", "validation", "guarantee", "positive"),
        complete="bnn.data.array_sets:completed",
        again=False,
    )
)
