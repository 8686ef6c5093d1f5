"""Where the files of named data sets are: the folders that are searched, in order, and the forms a set comes in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bnn.data.named_sets.download import Remote, fetch


@dataclass(frozen=True)
class Form:
    """One way in which a part of a data set is stored: files that lie together.

    Args:
        read: what reads them: (paths in the order of `files`, how many are wanted or None) -> content.
        files: their names relative to a folder that is searched; all must be there. A `*` stands for any text.
        remotes: where to download each file from, in the order of `files`; empty where that is not offered.
    """

    read: Callable[..., Any]
    files: tuple[str, ...]
    remotes: tuple[Remote, ...] = ()


def cache() -> Path:
    """The folder for downloads and decoded sets: BNN_CACHE, else `bayesianize` in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("BNN_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "bayesianize"


def folders() -> list[Path]:
    """The folders that are searched, in order: those of BNN_DATA (separated as in PATH), then the cache."""
    named = [Path(one).expanduser() for one in os.environ.get("BNN_DATA", "").split(os.pathsep) if one]
    return [*named, cache()]


def find(forms: Sequence[Form]) -> tuple[Form, list[Path]] | None:
    """The first form whose files are all there, and their paths; None if there is none.

    A folder that comes first wins over a form that comes first.
    """
    for folder in folders():
        for form in forms:
            paths = [_match(folder, name) for name in form.files]
            if all(path is not None for path in paths):
                return form, [path for path in paths if path is not None]
    return None


def locate(what: str, forms: Sequence[Form], download: bool = False, hint: str = "") -> tuple[Form, list[Path]]:
    """As `find`, downloading where that is allowed; otherwise an error that says what to put where.

    Args:
        what: what is looked for, for the error: "the training part of mnist".
        forms: in order of preference.
        download: whether to download what is not there; BNN_DOWNLOAD=1 allows it everywhere.
        hint: one more way out, for the error.

    Raises:
        FileNotFoundError: it is not there, and may not or cannot be downloaded.
    """
    found = find(forms)
    if found is not None:
        return found
    remote = next((form for form in forms if form.remotes), None)
    if remote is None or not (download or os.environ.get("BNN_DOWNLOAD", "") not in ("", "0")):
        _missing(what, forms, remote, download, hint)
    paths = [cache() / name for name in remote.files]
    for path, source in zip(paths, remote.remotes, strict=True):
        if not path.exists():
            fetch(source, path)
    return remote, paths


def _match(folder: Path, name: str) -> Path | None:
    """The file of this name; of several that a `*` allows, the first in order of names."""
    if "*" in name:
        return next((path for path in sorted(folder.glob(name)) if path.is_file()), None)
    return folder / name if (folder / name).is_file() else None


def _missing(what: str, forms: Sequence[Form], remote: Form | None, download: bool, hint: str) -> NoReturn:
    places = ", ".join(f"{one}{'' if one.is_dir() else ' (no such folder)'}" for one in folders())
    names = "\n".join("  " + " + ".join(form.files) for form in forms)
    if remote is not None:
        sites = ", ".join(dict.fromkeys(one.url.rpartition("/")[0] for one in remote.remotes))
        advice = f"pass download=True (or set BNN_DOWNLOAD=1) to get it from {sites}, or put one of these into a folder"
    else:
        refused = "there is no download with a known checksum, so " if download else ""
        advice = f"{refused}put one of these into a folder"
    unset = "" if os.environ.get("BNN_DATA") else " (BNN_DATA is not set)"
    raise FileNotFoundError(
        f"{what} was not found in {places}{unset}. Looked for, one line per form:\n{names}\n"
        f"What to do: {advice} and name the folder in the environment variable BNN_DATA{hint and '; ' + hint}."
    )
