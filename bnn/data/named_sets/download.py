"""Downloads with a checksum: a file appears whole and verified, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
