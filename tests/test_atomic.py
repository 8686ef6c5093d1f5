"""Files that appear whole or not at all: what may be replaced, and what killed writers leave behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bnn._common import atomic
from bnn._common.atomic import write_atomically


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match=r"pipe: expected a regular file to replace, found a pipe; name a file"):
        write_atomically(b"new", str(tmp_path / "pipe"))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(FileExistsError, match="found a device"):
        write_atomically(b"new", os.devnull)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(FileExistsError, match="found a socket"):
            write_atomically(b"new", str(tmp_path / "socket"))
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_atomically(b"new", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; create it first"):
        write_atomically(b"new", str(tmp_path / "nowhere" / "file"))
    assert sorted(os.listdir(tmp_path)) == ["pipe", "socket"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o777])
def test_permissions_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    write_atomically(b"old", str(path))
    path.chmod(mode)
    write_atomically(b"new", str(path))
    assert path.read_bytes() == b"new"
    assert mode_of(path) == mode


def test_the_file_is_never_wider_open_than_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", []
    path.write_bytes(b"old")
    path.chmod(0o600)
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode)))
    write_atomically(b"new", str(path))
    assert seen == [0o600]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".file.00000000.tmp").write_bytes(b"left behind")
    write_atomically(b"new", "file")
    assert os.listdir(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from bnn._common.atomic import write_atomically
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(b"half", sys.argv[1])
"""


def test_what_a_killed_writer_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert path.read_bytes() == b"old"
    write_atomically(b"new", str(path))
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"new"


def test_the_file_of_a_living_writer_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    others = [".file.tmp", ".file.0000000g.tmp", ".other.00000000.tmp", ".xfile.00000000.tmp", "file.00000000.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    inner: list[bytes] = []
    sync = os.fsync

    def meanwhile(descriptor: int) -> None:  # a second writer comes while the first one writes
        if not inner:
            inner.append(b"second")
            write_atomically(inner[0], str(path))
            assert path.read_bytes() == b"second"
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_atomically(b"first", str(path))
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "file"])


def test_without_locks_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    young, old = tmp_path / ".file.00000000.tmp", tmp_path / ".file.11111111.tmp"
    for one in (young, old):
        one.write_bytes(b"half")
    hours = time.time() - 2 * 3600
    os.utime(old, (hours, hours))
    write_atomically(b"new", str(tmp_path / "file"))
    assert sorted(os.listdir(tmp_path)) == [young.name, "file"]


def test_the_old_file_is_kept_where_asked(tmp_path: Path) -> None:
    path, before = tmp_path / "file", tmp_path / "before"
    write_atomically(b"1", str(path), keep=str(before))
    assert os.listdir(tmp_path) == ["file"]
    write_atomically(b"2", str(path), keep=str(before))
    assert (path.read_bytes(), before.read_bytes()) == (b"2", b"1")
