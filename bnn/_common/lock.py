"""One process at a time: a lock that the system frees when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
