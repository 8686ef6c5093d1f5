"""Files that appear whole or not at all, and locks that let one process at a time into a folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ABANDONED = 3600.0  # seconds after which a temporary file has no writer, where locks cannot tell
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def write_atomically(data: bytes, path: str, keep: str | None = None) -> None:
    """Writes next to `path`, then renames: a crash leaves the old file, never half of the new one.

    The new file has the permissions of the old one. What killed writers left behind for this path is cleared.

    Args:
        keep: where the old file goes; None replaces it.

    Raises:
        FileNotFoundError: there is no such folder.
        IsADirectoryError, FileExistsError: `path` names something that is no regular file, which is left alone.
    """
    check_target(path)
    old = os.stat(path) if os.path.exists(path) else None
    _clear_abandoned(path)
    temporary, descriptor = _locked(path, 0o666 if old is None else stat.S_IMODE(old.st_mode))
    try:
        with open(descriptor, "wb") as file:
            if old is not None:
                _own_as(temporary, old)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows renames no open file; elsewhere closing ends the lock
            if keep is not None and old is not None:
                os.replace(path, keep)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def check_target(path: str) -> None:
    """Raises unless `path` is, or may become, a regular file in a folder that exists."""
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it first")
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "something else")
        raise FileExistsError(f"cannot write {path}: expected a regular file to replace, found {kind}; name a file")


def _locked(path: str, mode: int) -> tuple[str, int]:
    """A new temporary file for `path`, and its descriptor, locked for as long as that is open."""
    folder, name = os.path.split(path)
    while True:
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode & 0o777)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(temporary):
            return temporary, descriptor
        os.close(descriptor)  # another writer took it for abandoned before it was locked


def _own_as(path: str, old: os.stat_result) -> None:
    """Gives a new file the owner, where we may, and the permissions of the old one."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def _clear_abandoned(path: str) -> None:
    """Removes the temporary files of writers of `path` that were killed."""
    folder, name = os.path.split(path)
    temporary = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{8}\.tmp")
    with contextlib.suppress(OSError):  # a folder that may be written but not listed
        for found in filter(temporary.fullmatch, os.listdir(folder or os.curdir)):
            with contextlib.suppress(OSError):  # another writer was faster
                _remove_abandoned(os.path.join(folder, found))


def _remove_abandoned(temporary: str) -> None:
    """Removes a temporary file unless its writer lives: it holds a lock, which ends with it, however it ends."""
    descriptor = os.open(temporary, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(temporary)
                return
            except BlockingIOError:
                return
            except OSError:
                pass  # no locks here
        if time.time() - os.fstat(descriptor).st_mtime > ABANDONED:
            os.remove(temporary)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Holds the lock file `path`, which stays; BlockingIOError if somebody else holds it.

    Where the file system has no locks nothing is held.
    """
    import filelock  # torch depends on it

    open(path, "a").close()  # an error to write is one, an error to lock is not
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise BlockingIOError(f"{path} is held by another process") from None
    except (OSError, NotImplementedError):
        yield
        return
    except RuntimeError:  # another lock of this very process, which filelock tells apart
        raise BlockingIOError(f"{path} is held by this process") from None
    try:
        yield
    finally:
        lock.release()
