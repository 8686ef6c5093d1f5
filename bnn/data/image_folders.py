"""Data of your own: a folder of images, one folder per class."""

from __future__ import annotations

import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bnn._common.checks import fraction_of
from bnn._common.errors import ArgumentError
from bnn._common.extras import need
from bnn._common.text import listed
from bnn.data.dataset import Data, Part
from bnn.data.image_files import (
    FolderPreparation,
    Header,
    ImageFileError,
    check_memory,
    checked_size,
    decode,
    files_below,
    header,
    is_image,
    is_quiet,
    shown_size,
)
from bnn.data.images import Augment, ImageScaling
from bnn.data.sources import VALIDATION
from bnn.data.split import inputs_aside, split

SMALL = 64  # pixels a side, up to which a small network takes images as they are
SCALED = 32  # pixels a side to which larger ones are scaled: what a small network learns from in a minute
MANY = 1000  # images from which on progress is shown
PARTS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "val", "valid"), "validation"
)

T = TypeVar("T")


@dataclass
class Found:
    """Images by part and class: {part: {class: files}}; without folders of parts there is only "train"."""

    root: pathlib.Path
    parts: dict[str, dict[str, list[pathlib.Path]]] = field(default_factory=dict)
    ignored: list[pathlib.Path] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the training part, sorted."""
        return tuple(sorted(self.parts["train"]))


class _Image(NamedTuple):
    part: str
    label: int
    path: pathlib.Path


def folder(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    test: float | None = 0.2,
    validation: float | None = 0.1,
    guarantee: float | int | None = None,
    seed: int = 0,
    grey: bool | None = None,
    augment: bool | Callable[[Tensor, torch.Generator], Tensor] = False,
    skip_corrupt: bool = False,
    progress: bool | None = None,
) -> Data:
    """Images in folders as data for classification: one folder per class, or such folders in train/ and test/.

    Args:
        path: `path`/class/*.png, or `path`/train/class/, `path`/test/class/, perhaps `path`/validation/class/. Images
            end in .png, .jpg, .jpeg, .bmp, .gif, .webp, .tif or .tiff; those in folders below a class belong to it.
        size: (H, W), or the side of a square: images are scaled to cover it and cut at the centre. None: all must have
            one size.
        test, validation: fractions to set aside where there is no folder of that name; every class keeps its share.
        guarantee: the share of training images to set aside for a guarantee (`bnn.conformal`), as 0.1, but at least 50;
            or their number. They are drawn first, and nothing else sees them. None or 0: none.
        seed: of the split, which depends on nothing else.
        grey: one channel; None: if all files are stored so.
        augment: True crops and flips training images at random (`Augment`); or a function of your own.
        skip_corrupt: leave damaged files out with a warning, instead of an error.
        progress: whether to show progress; None: in a terminal, from 1000 images on, if rich is installed.

    Returns:
        Data whose `preparation` (`FolderPreparation`) reads new image files.
    """
    fractions = {"test": fraction_of(test, "test"), "validation": fraction_of(validation, "validation")}
    found = find_images(path)
    images = [
        _Image(part, label, file)
        for part, classes in found.parts.items()
        for label, name in enumerate(found.classes)
        for file in classes.get(name, [])
    ]
    images, headers = _readable(
        images, lambda one: header(one.path), skip_corrupt, _progress(progress, "looking at images")
    )
    sides = _one_size(images, headers) if size is None else checked_size(size)
    grey = all(one.grey for one in headers) if grey is None else grey
    check_memory((len(images), 1 if grey else 3, *sides))
    x = torch.empty(len(images), 1 if grey else 3, *sides, dtype=torch.uint8)
    rows = iter(x)

    def read(one: _Image) -> None:
        pixels = decode(one.path, sides, grey)  # first: a damaged image takes no row
        next(rows).copy_(torch.from_numpy(pixels))

    images, _ = _readable(images, read, skip_corrupt, _progress(progress, "reading images"))
    _check_classes(found, images)
    parts = _parts(x[: len(images)], images, found, fractions, seed, guarantee)
    scaling = ImageScaling.learned(parts["train"][0])
    made = {name: Part(*tensors, scaling) for name, tensors in parts.items()}
    return Data(
        name=found.root.resolve().name,
        task="classification",
        train=made["train"],
        test=made.get("test"),
        validation=made.get("validation"),
        classes=found.classes,
        preparation=FolderPreparation(scaling, sides, grey, size is not None),
        augment=(Augment() if augment else None) if isinstance(augment, bool) else augment,
        guarantee=made.get("guarantee"),
    )


def completed(description: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """What the command line adds: the share of validation data, and a size if images differ in size or are large."""
    size = {} if "size" in description or _all_small(description["folder"]) else {"size": SCALED}
    if size:
        tell(f"images are scaled to {SCALED} x {SCALED} pixels; --image-size says otherwise")
    return {"validation": VALIDATION, **description, **size}


def _all_small(path: str) -> bool:
    """Whether all images have one size, at which a small network can take them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again when the images are read
        found = find_images(path)
    sizes = set()
    for file in (file for classes in found.parts.values() for files in classes.values() for file in files):
        try:
            sizes.add(header(file).size)
        except ImageFileError:
            continue  # reading the data names it
    return len(sizes) == 1 and max(*sizes.pop()) <= SMALL


def _readable(
    images: Sequence[_Image], read: Callable[[_Image], T], skip: bool, shown: Callable[[list[_Image]], Iterable[_Image]]
) -> tuple[list[_Image], list[T]]:
    """The images that `read` can read, and what it gives; a damaged one is an error, or left out with a warning."""
    kept, results, damaged = [], [], []
    for image in shown(list(images)):
        try:
            results.append(read(image))
            kept.append(image)
        except ImageFileError as error:
            if not skip:
                raise ImageFileError(
                    f"{error}; repair or remove it, or leave such files out with skip_corrupt=True", "skip_corrupt"
                ) from error
            damaged.append(str(error))
    if damaged:
        warnings.warn(f"{len(damaged)} damaged images are left out: {listed(damaged)}", stacklevel=3)
    return kept, results


def _one_size(images: Sequence[_Image], headers: Sequence[Header]) -> tuple[int, int]:
    """The size that all images have; two that differ are named in an error."""
    for image, one in zip(images, headers, strict=True):
        if one.size != headers[0].size:
            raise ArgumentError(
                f"images differ in size: {images[0].path} is {shown_size(headers[0].size)}, {image.path} is "
                f"{shown_size(one.size)} (height x width); scale all to one with size=32 or size=(H, W)",
                "size",
            )
    if not headers:
        raise ValueError("no image could be read")
    return headers[0].size


def _check_classes(found: Found, images: Sequence[_Image]) -> None:
    """An error if damaged files were all that a class had to train on."""
    trained = {image.label for image in images if image.part == "train"}
    empty = [repr(name) for label, name in enumerate(found.classes) if label not in trained]
    if empty:
        raise ValueError(f"{found.root}: classes without a readable image to train on: {listed(empty)}")


def _parts(
    x: Tensor, images: Sequence[_Image], found: Found, fractions: dict[str, float], seed: int, guarantee: Any
) -> dict[str, tuple[Tensor, Tensor]]:
    """{part: images and labels}: as the folders say, and from the training part by fractions where they say nothing."""
    y = torch.tensor([image.label for image in images])
    at = {name: torch.tensor([i for i, one in enumerate(images) if one.part == name]) for name in found.parts}
    wanted = {name: 0.0 if name in at else fraction for name, fraction in fractions.items()}
    train = at["train"]
    name = str(found.root)
    aside = inputs_aside(guarantee, len(train), name)
    cut = split(len(train), **wanted, seed=seed, labels=y[train], classes=found.classes, name=name, guarantee=aside)
    made = {"test": cut.test, "validation": cut.validation, "guarantee": cut.guarantee}
    at |= {part: train[index] for part, index in made.items() if len(index)}
    at["train"] = train[cut.train]
    return {name: (x[index], y[index]) for name, index in at.items() if len(index)}


def _progress(wanted: bool | None, what: str) -> Callable[[list[_Image]], Iterable[_Image]]:
    """Wraps a list so that going through it shows progress, or not."""

    def shown(images: list[_Image]) -> Iterable[_Image]:
        if wanted is False or (wanted is None and (len(images) < MANY or not sys.stderr.isatty())):
            return images
        try:
            bars, consoles = need("rich.progress", "data"), need("rich.console", "data")
        except ImportError:
            if wanted:
                raise
            return images
        return bars.track(images, what, console=consoles.Console(stderr=True))

    return shown


def find_images(path: str | os.PathLike[str]) -> Found:
    """The images of `path`/class/, or of `path`/train/class/, `path`/test/class/ and `path`/validation/class/.

    Raises:
        ValueError: no classes, or one, one without images, or one that only the test or validation part has.
    """
    root = pathlib.Path(path)
    if not root.is_dir():
        reason = "is a file" if root.exists() else "does not exist"
        raise NotADirectoryError(f"{root} {reason}; expected a folder with one folder of images per class")
    found, folders = Found(root), _subfolders(root, root)
    by_part = {PARTS[name.lower()]: folder for name, folder in folders.items() if name.lower() in PARTS}
    if "train" in by_part and not _has_images(by_part["train"]):
        found.ignored += [folder for folder in folders.values() if folder not in by_part.values()] + _loose_files(root)
        for part, folder in by_part.items():
            found.parts[part] = _classes(found, folder)
    else:
        found.parts["train"] = _classes(found, root)
    _check(found)
    if found.ignored:
        names = listed(str(one.relative_to(root)) for one in found.ignored)
        warnings.warn(f"{root}: {len(found.ignored)} files or folders are no images of a class: {names}", stacklevel=3)
    return found


def _subfolders(folder: pathlib.Path, root: pathlib.Path) -> dict[str, pathlib.Path]:
    """By name, sorted; a link that leads back to `root` or above it is none."""
    inside = [one for one in sorted(folder.iterdir()) if one.is_dir() and not is_quiet(one.name)]
    real = root.resolve()
    return {one.name: one for one in inside if not (one.is_symlink() and real.is_relative_to(one.resolve()))}


def _classes(found: Found, folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    classes = {}
    for name, inside in _subfolders(folder, found.root).items():
        classes[name], others = files_below(inside)
        found.ignored += others
    found.ignored += _loose_files(folder)
    return classes


def _loose_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [one for one in sorted(folder.iterdir()) if one.is_file() and not is_quiet(one.name)]


def _has_images(folder: pathlib.Path) -> bool:
    return any(is_image(one.name) for one in folder.iterdir() if one.is_file())


def _check(found: Found) -> None:
    classes = found.classes
    if len(classes) < 2:
        raise ValueError(
            f"{found.root} has {len(classes)} folders of classes {list(classes)}, at least two are needed: "
            f"{found.root}/cat/1.png, {found.root}/dog/2.png, ..."
        )
    empty = [repr(name) for name, files in found.parts["train"].items() if not files]
    if empty:
        raise ValueError(
            f"{found.root}: classes without an image to train on: {listed(empty)}; add some or remove them"
        )
    for part, images in found.parts.items():
        unknown = [repr(name) for name, files in images.items() if files and name not in classes]
        if unknown:
            raise ValueError(f"{found.root}: classes in {part} that have no folder in train: {listed(unknown)}")
        if not any(images.values()):
            raise ValueError(f"{found.root}: the folder of the {part} part has no images; fill it or remove it")
