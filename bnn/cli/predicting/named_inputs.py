"""Inputs as they are given to a command: each with a name that its row of the answer carries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bnn._common.text import nearest
from bnn.cli.mistakes import Mistake
from bnn.data.dataset import Part
from bnn.data.image_folders.image_files import is_image

Kind = Literal["folder", "image", "array", "table", "other"]
KINDS: dict[Kind, str] = {
    "folder": ", a folder",
    "image": ", an image",
    "array": ", a file of arrays",
    "table": ", a table",
    "other": "",
}
ARRAYS, TABLES = (".npy", ".npz"), (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Inputs:
    """N inputs of a network.

    Args:
        names: of the inputs (N,): files as given, or lines and rows.
        part: the inputs, with what prepares them.
        kept: columns of the tables they came from, {name: N cells}.
    """

    names: Sequence[str]
    part: Part
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)


def kind_of(path: str) -> Kind:
    """What a path seems to be, by its ending; a path that leads nowhere is a mistake.

    >>> kind_of("nowhere/rows.csv")
    Traceback (most recent call last):
    bnn.cli.mistakes.Mistake: there is no file nowhere/rows.csv
    """
    if not os.path.exists(path):
        parent, name = os.path.split(os.path.normpath(path))
        beside = os.listdir(parent or os.curdir) if os.path.isdir(parent or os.curdir) else []
        raise Mistake(f"there is no file {path or repr(path)}{nearest(name, beside)}")
    if os.path.isdir(path):
        return "folder"
    if is_image(path):
        return "image"
    ending = os.path.splitext(path)[1].lower()
    return "array" if ending in ARRAYS else "table" if ending in TABLES else "other"


def refuse(path: str, kind: Kind, takes: str) -> Mistake:
    """The mistake of giving a run what it does not take."""
    return Mistake(f"{takes}; got {path}{KINDS[kind]}")


def row_names(path: str, several: bool, word: str, numbers: Sequence[int]) -> list[str]:
    """A name for each row of a file: "line 7"; with the file's name before it where there are several files.

    >>> row_names("a.csv", True, "line", [2, 3])
    ['a.csv, line 2', 'a.csv, line 3']
    """
    before = f"{path}, " if several else ""
    return [f"{before}{word} {number}" for number in numbers]
