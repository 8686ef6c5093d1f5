"""Which image belongs to which class and part, by the folders it lies in."""

from __future__ import annotations

import os
import pathlib
import warnings
from dataclasses import dataclass, field

from bnn._common.text import listed
from bnn.data.image_folders.image_files import files_below, is_image, is_quiet

PARTS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "val", "valid"), "validation"
)


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
        strangers = [repr(name) for name, files in images.items() if files and name not in classes]
        if strangers:
            raise ValueError(f"{found.root}: classes in {part} that have no folder in train: {listed(strangers)}")
        if not any(images.values()):
            raise ValueError(f"{found.root}: the folder of the {part} part has no images; fill it or remove it")
