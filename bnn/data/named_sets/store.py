"""The files of named data sets: folders that are searched, and downloads, which appear verified or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bnn._common.extras import need

BLOCK = 1 << 18  # bytes read at once
TIMEOUT = 60.0  # seconds without a byte until a transfer counts as dead


@dataclass(frozen=True)
class Remote:
    """A file at an official place, with the SHA-256 (64 hexadecimal digits) that it must have."""

    url: str
    sha256: str

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"sha256 must be 64 lower-case hexadecimal digits, got {self.sha256!r}")


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
    """The folder for downloads: BNN_CACHE, else `bayesianize` in XDG_CACHE_HOME or ~/.cache."""
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


def fetch(remote: Remote, path: Path) -> None:
    """Downloads a file to `path`: to a temporary file first, verified, then renamed.

    Raises:
        ConnectionError: the place does not answer, refuses, or the transfer was cut short; nothing is left behind.
        ValueError: the file has another checksum; nothing is left behind.
    """
    with written(path) as temporary:
        try:
            found = _stream(remote.url, temporary)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise ConnectionError(
                f"could not download {remote.url}: {error}; try again later, or put the file at {path} by hand"
            ) from error
        if found != remote.sha256:
            raise ValueError(
                f"{remote.url} has SHA-256 {found}, expected {remote.sha256}: it was changed, or damaged on the "
                f"way, and was not kept; try again later, or put a good copy at {path}"
            )


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A temporary name next to `path` to write to; renamed to `path` at the end, removed if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _stream(url: str, path: Path) -> str:
    """Writes what `url` gives to a new file, block by block, and returns its SHA-256."""
    digest, received = hashlib.sha256(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "bayesianize"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "xb") as file:
        announced = answer.headers.get("Content-Length", "")
        total = int(announced) if announced.isdecimal() else None
        with _progress(url.rpartition("/")[2], total) as advance:
            while block := answer.read(BLOCK):
                file.write(block)
                digest.update(block)
                received += len(block)
                advance(len(block))
        file.flush()
        os.fsync(file.fileno())
    if total is not None and received != total:
        raise ConnectionError(f"it ended after {received:,} of {total:,} bytes")
    return digest.hexdigest()


@contextlib.contextmanager
def _progress(name: str, total: int | None) -> Iterator[Callable[[int], Any]]:
    """A function that takes how many bytes came; shows a bar on a terminal where rich is installed."""
    try:
        rich = need("rich.progress", extra="data")
    except ImportError:
        yield lambda _: None
        return
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    console = need("rich.console", extra="data").Console(stderr=True)
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)
