"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets


def write_atomically(data: bytes, path: str, keep: str | None = None) -> None:
    """Writes next to `path`, then renames: a crash leaves the old file, never half of the new one.

    Args:
        keep: where the old file goes; None replaces it.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and os.path.exists(path):
            os.replace(path, keep)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
