"""`--data`: a named set, a file or a folder, as a recipe describes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bnn._common.text import nearest
from bnn.cli.console import say
from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.options import whole_numbers
from bnn.cli.training.flags import Flags, option
from bnn.data import names
from bnn.data.dataset import TASKS
from bnn.data.sources import FLAGS, SOURCES, source_at, source_of
from bnn.data.split import GUARANTEE


def described(flags: Flags, before: dict[str, Any] | None) -> dict[str, Any]:
    """The data of a recipe by the flags; `before` is what a recipe file or preset says."""
    data = dict(before) if flags.data is None and before is not None else _typed(str(flags.data))
    source = source_of(data)
    for flag in flags.given(*FLAGS):
        if flag not in source.flags:
            fitting = " and ".join(one.title for one in SOURCES.values() if flag in one.flags)
            raise Mistake(f"{option(flag)} is for {fitting}; {data[source.kind]} is {source.title}: leave it out")
    data |= _options(flags)
    if flags.data is None:
        return data
    data = source.completed(data, say)
    for name, what in source.needs.items():
        if name not in data:
            flag = next((option(one) for one in source.flags if FLAGS[one] == name), f"--set data.{name}=VALUE")
            raise Mistake(f"{data[source.kind]} is {source.title}, which needs {what}: give {flag}")
    return {source.kind: data[source.kind], **{name: value for name, value in data.items() if name != source.kind}}


def label(data: dict[str, Any]) -> str:
    """A short name of the data, fit for a folder.

    >>> label({"csv": "tables/my.iris.csv"}), label({"name": "uci/yacht"})
    ('my.iris', 'uci-yacht')
    """
    source = source_of(data)
    where = str(data[source.kind])
    if not source.path:
        return where.replace("/", "-")
    stem = os.path.basename(os.path.abspath(where))
    return stem if source.folders else os.path.splitext(stem)[0]


def file_of(data: dict[str, Any]) -> str | None:
    """The file or folder of a recipe's data that `bayesianize predict` takes, too; None if there is none."""
    source = source_of(data)
    return str(data[source.kind]) if source.again else None


def new_file(data: dict[str, Any]) -> str | None:
    """A name for new inputs as those of a recipe's data; None if `bayesianize predict` takes other files.

    >>> new_file({"csv": "tables/houses.tsv"}), new_file({"folder": "photos"}), new_file({"name": "digits"})
    ('new.tsv', 'new-photos', None)
    """
    known = file_of(data)
    if known is None:
        return None
    if source_of(data).folders:
        return f"new-{os.path.basename(os.path.abspath(known))}"
    return f"new{os.path.splitext(known)[1]}"


def _typed(typed: str) -> dict[str, Any]:
    """{kind: where} of what `--data` names."""
    known = names()
    spelled = typed.lower().replace("-", "_")
    if spelled in known:
        return {"name": spelled}
    ending = os.path.splitext(typed)[1].lower()
    source = source_at(typed)
    if source is not None and os.path.exists(typed):
        return {source.kind: typed}
    if os.path.exists(typed):
        hint = "; an .npy file holds one array: put inputs x and targets y in one .npz" if ending == ".npy" else ""
        raise Mistake(f"--data {typed}: expected {_expected()}{hint}")
    if ending or (os.path.dirname(typed) and not typed.startswith("uci/")):
        raise Mistake(f"there is no file or folder {typed}{_beside(typed)}")
    hint = nearest(spelled, known) or _beside(typed)
    raise Mistake(
        f"unknown data {typed!r}{hint}: there is no file or folder of that name, and the named sets are "
        f"{', '.join(known)}"
    )


def _expected() -> str:
    """The files and folders that there are sources for."""
    *endings, last = [ending for source in SOURCES.values() for ending in source.endings]
    folders = [source.title for source in SOURCES.values() if source.folders]
    return ", or ".join([f"a {', '.join(endings)} or {last} file", *folders])


def _beside(path: str) -> str:
    """A suggestion: what lies in the same folder and has the nearest name."""
    folder, name = os.path.split(path.rstrip("/"))
    there = os.listdir(folder or os.curdir) if os.path.isdir(folder or os.curdir) else []
    return nearest(name, there, before=os.path.join(folder, "") if folder else "")


def _options(flags: Flags) -> dict[str, Any]:
    """The options of the data that flags give."""
    return {
        FLAGS[flag]: VALUES[flag](typed) if flag in VALUES else typed for flag, typed in flags.given(*FLAGS).items()
    }


def _task(typed: str) -> str:
    return one_of("task", typed, TASKS)


def _columns(typed: str) -> list[str]:
    return [name.strip() for name in typed.split(",")]


def _targets(typed: str) -> str | list[str]:
    names = _columns(typed)
    return names[0] if len(names) == 1 else names


def _sides(typed: str) -> int | list[int]:
    sides = whole_numbers("--image-size", typed, "32 or 24x32")
    if len(sides) > 2:
        raise Mistake(f"--image-size is one side or HEIGHTxWIDTH, as 32 or 24x32; got {typed!r}")
    return sides[0] if len(sides) == 1 else sides


def _fraction_or_file(typed: str) -> float | str:
    try:
        return float(typed)
    except ValueError:
        if os.path.isfile(typed):
            return typed
        raise Mistake(f"--test is a share of the data, as 0.2, or a CSV file of test rows; got {typed!r}") from None


def _aside(typed: bool) -> float | None:
    return GUARANTEE if typed else None


VALUES: dict[str, Callable[[Any], Any]] = {  # what the text of a flag means; others are values already
    "target": _targets,
    "task": _task,
    "drop": _columns,
    "image_size": _sides,
    "test": _fraction_or_file,
    "guarantee": _aside,
}
