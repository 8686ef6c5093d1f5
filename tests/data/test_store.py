"""Where files are looked for, and downloads: from a server on this machine that also misbehaves."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_sets import written

from bnn.data.named_sets import store
from bnn.data.named_sets.store import Form, Remote, fetch, find, folders, locate

CONTENT = bytes(range(256)) * 4000  # more than one block
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """/good and /changed give a file, /short half of it, /late nothing for a while; nothing else is there."""

    def do_GET(self) -> None:
        if self.path == "/late":
            self.server.answers.wait(10)  # type: ignore[attr-defined]
            return
        if self.path not in ("/good", "/changed", "/short"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        body = {"/good": CONTENT, "/changed": CONTENT[::-1], "/short": CONTENT[: len(CONTENT) // 2]}
        self.wfile.write(body[self.path])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.answers.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BNN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BNN_DOWNLOAD", raising=False)


def form(*files: str, remotes: tuple[Remote, ...] = ()) -> Form:
    return Form(lambda paths, first: paths, files, remotes)


def test_folders_and_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folders() == [tmp_path / "data", tmp_path / "cache"]
    monkeypatch.setenv("BNN_DATA", f"{tmp_path / 'a'}{store.os.pathsep}{tmp_path / 'b'}")
    monkeypatch.delenv("BNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders() == [tmp_path / "a", tmp_path / "b", tmp_path / "xdg" / "bayesianize"]
    monkeypatch.delenv("BNN_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders() == [tmp_path / ".cache" / "bayesianize"]


def test_a_folder_wins_over_a_form(tmp_path: Path) -> None:
    best, second = form("best"), form("second")
    written(tmp_path / "cache" / "best", b"")
    found = find([best, second])
    assert found == (best, [tmp_path / "cache" / "best"])
    written(tmp_path / "data" / "second", b"")
    assert find([best, second]) == (second, [tmp_path / "data" / "second"])
    written(tmp_path / "data" / "best", b"")
    assert find([best, second]) == (best, [tmp_path / "data" / "best"])


def test_all_files_of_a_form_must_be_there(tmp_path: Path) -> None:
    written(tmp_path / "data" / "images", b"")
    written(tmp_path / "cache" / "labels", b"")
    assert find([form("images", "labels")]) is None
    written(tmp_path / "data" / "labels", b"")
    assert find([form("images", "labels")]) is not None
    (tmp_path / "data" / "folder").mkdir()
    assert find([form("folder")]) is None


def test_names_with_a_star(tmp_path: Path) -> None:
    written(tmp_path / "data" / "svhn_first20.npz", b"")
    written(tmp_path / "data" / "svhn_first10.npz", b"")
    found = find([form("svhn_first*.npz")])
    assert found is not None
    assert found[1] == [tmp_path / "data" / "svhn_first10.npz"]


def test_missing_files_are_listed_with_what_to_do(tmp_path: Path) -> None:
    remote = Remote("http://example.org/sets/b.gz", SHA256)
    forms = [form("a.npz"), form("set/b.gz", remotes=(remote,))]
    with pytest.raises(FileNotFoundError) as caught:
        locate("the train part of set", forms, hint="look again")
    text = str(caught.value)
    for expected in (str(tmp_path / "data"), str(tmp_path / "cache"), "a.npz", "set/b.gz", "download=True"):
        assert expected in text
    assert "http://example.org/sets" in text
    assert "look again" in text
    assert "BNN_DATA is not set" not in text


def test_without_an_address_there_is_no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BNN_DATA")
    with pytest.raises(FileNotFoundError, match=r"\(BNN_DATA is not set\)(?s:.*)no download with a known checksum"):
        locate("it", [form("a.npz")], download=True)


def test_download(site: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    fetch(Remote(f"{site}/good", SHA256), path)
    assert path.read_bytes() == CONTENT
    assert [one.name for one in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("changed", ValueError, "has SHA-256 [0-9a-f]{64}, expected [0-9a-f]{64}"),
        ("short", ConnectionError, "ended after 512,000 of 1,024,000 bytes"),
        ("missing", ConnectionError, "could not download.*404"),
    ],
)
def test_a_bad_download_leaves_nothing(
    site: str, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fetch(Remote(f"{site}/{name}", SHA256), tmp_path / "new" / "file")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_server_that_does_not_answer(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TIMEOUT", 0.1)
    with pytest.raises(ConnectionError, match=r"could not download.*timed out"):
        fetch(Remote(f"{site}/late", SHA256), tmp_path / "file")


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match="by hand"):
        fetch(Remote(f"http://127.0.0.1:{port}/good", SHA256), tmp_path / "file")


def test_downloads_only_when_allowed_and_only_once(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = form("set/good", remotes=(Remote(f"{site}/good", SHA256),))
    with pytest.raises(FileNotFoundError, match="download=True"):
        locate("it", [one])
    monkeypatch.setenv("BNN_DOWNLOAD", "0")
    with pytest.raises(FileNotFoundError, match="download=True"):
        locate("it", [one])
    monkeypatch.setenv("BNN_DOWNLOAD", "1")
    assert locate("it", [one])[1] == [tmp_path / "cache" / "set" / "good"]
    monkeypatch.setattr(store, "fetch", lambda *_: pytest.fail("it is there already"))
    assert locate("it", [one], download=True)[1] == [tmp_path / "cache" / "set" / "good"]


def test_a_download_that_was_half_done_goes_on(site: str, tmp_path: Path) -> None:
    done = written(tmp_path / "cache" / "set" / "missing", b"here already")  # the server has no such file
    remotes = (Remote(f"{site}/missing", SHA256), Remote(f"{site}/good", SHA256))
    _, paths = locate("it", [form("set/missing", "set/good", remotes=remotes)], download=True)
    assert paths == [done, done.with_name("good")]
    assert [path.read_bytes() for path in paths] == [b"here already", CONTENT]


def test_without_rich_there_is_no_bar(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, extra: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(store, "need", missing)
    fetch(Remote(f"{site}/good", SHA256), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_checksum_must_be_one() -> None:
    with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
        Remote("http://example.org/a", "abc")
