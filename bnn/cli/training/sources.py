"""`--data`: a named set, a CSV file, a folder of images or an .npz file, as a recipe describes it."""

from __future__ import annotations

import os
import warnings
from typing import Any

from bnn.cli.console import say
from bnn.cli.mistakes import Mistake, nearest, one_of
from bnn.cli.networks.architecture import SMALL
from bnn.cli.options import whole_numbers
from bnn.cli.training.flags import Flags, option
from bnn.data import names
from bnn.data.array_sets.array_files import array_names
from bnn.data.dataset import TASKS
from bnn.data.image_folders.class_folders import find_images
from bnn.data.image_folders.image_files import ImageFileError, header
from bnn.data.tables.table import Reading
from bnn.train.recipe import DATA_KINDS

TEST, VALIDATION = 0.2, 0.1  # shares that are set aside where nothing is said
SCALED = 32  # pixels a side to which photos are scaled: what a small network learns from in a minute
KINDS = {
    "name": "a named data set",
    "csv": "a CSV file",
    "folder": "a folder of images",
    "arrays": "an .npz file",
}
FLAGS = {  # which flags say more about which kind of data
    "name": ("validation",),
    "csv": ("target", "drop", "task", "test", "validation"),
    "folder": ("image_size", "test", "validation"),
    "arrays": ("task", "test", "validation"),
}
MORE = ("target", "drop", "task", "image_size", "test", "validation")


def described(flags: Flags, before: dict[str, Any] | None) -> dict[str, Any]:
    """The data of a recipe by the flags; `before` is what a recipe file or preset says."""
    data = dict(before) if flags.data is None and before is not None else _source(str(flags.data))
    kind = next((kind for kind in DATA_KINDS if kind in data), "")
    for name in flags.given(*MORE):
        if kind and name not in FLAGS[kind]:
            fitting = " and ".join(KINDS[one] for one, known in FLAGS.items() if name in known)
            raise Mistake(f"{option(name)} is for {fitting}; {data[kind]} is {KINDS[kind]}: leave it out")
    return _completed(kind, data | _options(flags)) if flags.data is not None else data | _options(flags)


def label(data: dict[str, Any]) -> str:
    """A short name of the data, fit for a folder.

    >>> label({"csv": "tables/my.iris.csv"}), label({"name": "uci/yacht"})
    ('my.iris', 'uci-yacht')
    """
    if "name" in data:
        return str(data["name"]).replace("/", "-")
    where = next(str(data[kind]) for kind in DATA_KINDS if kind in data)
    stem = os.path.basename(os.path.abspath(where))
    return stem if "folder" in data else os.path.splitext(stem)[0]


def _source(typed: str) -> dict[str, Any]:
    """{kind: where} of what `--data` names."""
    known = names()
    spelled = typed.lower().replace("-", "_")
    if spelled in known:
        return {"name": spelled}
    if os.path.isdir(typed):
        return {"folder": typed}
    ending = os.path.splitext(typed)[1].lower()
    kind = {".csv": "csv", ".tsv": "csv", ".npz": "arrays"}.get(ending)
    if os.path.exists(typed):
        if kind is None:
            hint = "; an .npy file holds one array: put inputs x and targets y in one .npz" if ending == ".npy" else ""
            raise Mistake(f"--data {typed}: expected a .csv, .tsv or .npz file, or a folder of images{hint}")
        return {kind: typed}
    if ending or (os.path.dirname(typed) and not typed.startswith("uci/")):
        raise Mistake(f"there is no file or folder {typed}{_beside(typed)}")
    hint = nearest(spelled, known) or _beside(typed)
    raise Mistake(
        f"unknown data {typed!r}{hint}: there is no file or folder of that name, and the named sets are "
        f"{', '.join(known)}"
    )


def _beside(path: str) -> str:
    """A suggestion: what lies in the same folder and has the nearest name."""
    folder, name = os.path.split(path.rstrip("/"))
    there = os.listdir(folder or os.curdir) if os.path.isdir(folder or os.curdir) else []
    hint = nearest(name, there)
    return hint.replace("mean '", f"mean '{os.path.join(folder, '')}") if folder else hint


def _options(flags: Flags) -> dict[str, Any]:
    """The options of the data that flags give."""
    options = flags.given("target", "validation")
    if flags.task is not None:
        options["task"] = one_of("task", flags.task, TASKS)
    if flags.drop is not None:
        options["drop"] = [name.strip() for name in flags.drop.split(",")]
    if flags.image_size is not None:
        sides = whole_numbers("--image-size", flags.image_size, "32 or 24x32")
        if len(sides) > 2:
            raise Mistake(f"--image-size is one side or HEIGHTxWIDTH, as 32 or 24x32; got {flags.image_size!r}")
        options["size"] = sides[0] if len(sides) == 1 else sides
    if flags.test is not None:
        options["test"] = _fraction_or_file(flags.test)
    return options


def _fraction_or_file(typed: str) -> float | str:
    try:
        return float(typed)
    except ValueError:
        if os.path.isfile(typed):
            return typed
        raise Mistake(f"--test is a share of the data, as 0.2, or a CSV file of test rows; got {typed!r}") from None


def _completed(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """With what nobody said: which share validates, and how large images are."""
    data = {"validation": VALIDATION, **data}
    if kind == "name" and not data["validation"]:
        del data["validation"]
    if kind == "csv" and "target" not in data:
        columns = ", ".join(Reading().rows(data["csv"]).columns)
        raise Mistake(f"say which column to predict with --target; {data['csv']} has the columns {columns}")
    if kind == "arrays":
        inside = array_names(data["arrays"])
        if "x_validation" in inside:
            del data["validation"]
        data = data if "x_test" in inside else {"test": TEST, **data}
    if kind == "folder" and "size" not in data:
        data |= _size(data["folder"])
    return {kind: data[kind], **{name: value for name, value in data.items() if name != kind}}


def _size(folder: str) -> dict[str, int]:
    """The size to scale images to, if they differ in size, or are larger than a small network is made for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again when the images are read
        found = find_images(folder)
    sizes = set()
    for files in (files for classes in found.parts.values() for files in classes.values()):
        for file in files:
            try:
                sizes.add(header(file).size)
            except ImageFileError:
                continue  # reading the data names it
    if len(sizes) == 1 and max(*sizes.pop()) <= SMALL:
        return {}
    say(f"images are scaled to {SCALED} x {SCALED} pixels; --image-size says otherwise")
    return {"size": SCALED}
