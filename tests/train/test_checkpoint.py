"""Checkpoint files: what goes in comes out, and nothing else does."""

from __future__ import annotations

import errno
import math
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from small_runs import HERE, bayesian_net, blobs, environment, plain_net, run, same, values
from torch import Tensor

import bnn
from bnn.files import FileFormatError
from bnn.train import checkpoint, loop
from bnn.train.checkpoint import previous, read_checkpoint, write_checkpoint


def equal(one: Any, other: Any) -> bool:
    """Same types, same values, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        bits = [x.reshape(-1).view(torch.uint8) for x in (one, other)] if one.numel() else [one, other]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or (one != one and other != other)


STATE = {
    "tensors": {
        "float": torch.randn(3, 4),
        "scalar": torch.tensor(2.5),
        "bf16": torch.randn(5).bfloat16(),
        "half": torch.randn(2, 2).half(),
        "double": torch.tensor([math.pi, math.nan, -math.inf], dtype=torch.double),
        "empty": torch.zeros(0, 3),
        "bool": torch.tensor([True, False]),
        "int": torch.arange(4),
        "transposed": torch.randn(3, 4).T,
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    },
    "optimiser": {"state": {0: {"step": torch.tensor(1.0)}, 1: {}}, "param_groups": [{"betas": (0.9, 0.999)}]},
    "same in a path": {1: torch.zeros(1), "1": torch.ones(1)},
    "numbers": [1, -(2**70), 0.1, math.nan, math.inf, -math.inf, True, None, 1e-320, "ä\n\U0001f600"],
    "nested": ((), [], {}, [()], {"": {"$tensor": "no tensor"}}),
}


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "checkpoint.safetensors")
    write_checkpoint(STATE, path)
    assert equal(read_checkpoint(path), STATE)
    write_checkpoint({"no": "tensors"}, path)
    assert read_checkpoint(path) == {"no": "tensors"}
    assert equal(read_checkpoint(previous(path)), STATE)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.previous.safetensors", "checkpoint.safetensors"]


def test_what_cannot_be_stored_is_named_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "checkpoint.safetensors")
    write_checkpoint({"a": 1}, path)
    with pytest.raises(TypeError, match=r"cannot store 'a/b/0': expected tensors.*got <object"):
        write_checkpoint({"a": {"b": [object()]}}, path)
    assert read_checkpoint(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]


@pytest.fixture
def written(tmp_path: Path) -> str:
    """A checkpoint with another one before it."""
    path = os.fspath(tmp_path / "checkpoint.safetensors")
    for number in (1, 2):
        write_checkpoint({"number": number, "tensor": torch.arange(100.0) + number, "text": "x" * 50}, path)
    return path


def test_a_file_cut_short_anywhere_is_an_error_that_names_the_one_before(written: str) -> None:
    data = Path(written).read_bytes()
    lengths = {0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 400, len(data) - 1}
    lengths |= {random.Random(0).randrange(len(data)) for _ in range(40)}
    for length in sorted(lengths):
        Path(written).write_bytes(data[:length])
        with pytest.raises(FileFormatError, match=r"checkpoint\.previous\.safetensors, is kept: delete .* to resume"):
            read_checkpoint(written)
    assert read_checkpoint(previous(written))["number"] == 1


def test_without_one_before_it_the_error_says_so(written: str) -> None:
    os.remove(previous(written))
    Path(written).write_bytes(b"")
    with pytest.raises(FileFormatError, match="delete it to start again"):
        read_checkpoint(written)


def test_one_flipped_bit_anywhere_is_found(written: str) -> None:
    """In the tensors and in the record; only the padding between them, and their names' order, carry nothing."""
    data = bytearray(Path(written).read_bytes())
    state = read_checkpoint(written)
    rng = random.Random(1)
    start = 8 + int.from_bytes(data[:8], "little")
    places = [rng.randrange(start, len(data)) for _ in range(40)] + [rng.randrange(start) for _ in range(200)]
    found = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(7)
        Path(written).write_bytes(damaged)
        try:
            assert equal(read_checkpoint(written), state), place
            assert place < start
        except FileFormatError:
            found += 1
    assert found >= 230
    damaged = bytearray(data)
    damaged[-1] ^= 1
    Path(written).write_bytes(damaged)
    with pytest.raises(FileFormatError, match="damaged: its checksum does not fit"):
        read_checkpoint(written)


class Bomb:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def foreign_files(folder: Path) -> dict[str, Path]:
    folder.mkdir()
    paths = {name: folder / name for name in ("safetensors", "net", "zip", "pickle", "text", "empty", "json")}
    safetensors.torch.save_file({"weight": torch.zeros(3)}, paths["safetensors"])
    bnn.save(plain_net(), paths["net"])
    torch.save({"run": Bomb(folder / "ran"), "objective": torch.zeros(3)}, paths["zip"])
    paths["pickle"].write_bytes(pickle.dumps(Bomb(folder / "ran")))
    paths["text"].write_text("epoch,loss\n" * 100)
    paths["empty"].write_bytes(b"")
    paths["json"].write_text('{"a": 1}')
    return paths


def test_foreign_files_are_errors_and_nothing_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "it works")))
    assert (tmp_path / "it works").exists()
    for name, path in foreign_files(tmp_path / "foreign").items():
        with pytest.raises(FileFormatError, match="delete it to start again"):
            read_checkpoint(os.fspath(path))
        out = tmp_path / name
        out.mkdir()
        path.rename(out / "checkpoint.safetensors")
        net = bayesian_net()
        before = values(net)
        with pytest.raises(FileFormatError, match="delete it to start again"):
            run(net, out=out)
        assert same(net, before)
    assert not (tmp_path / "foreign" / "ran").exists()


def test_a_folder_in_the_place_of_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").mkdir()
    with pytest.raises(FileFormatError, match="no checkpoint at all"):
        run(bayesian_net(), out=tmp_path)


def test_a_newer_version_and_a_record_of_another_shape_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.fspath(tmp_path / "checkpoint.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT_VERSION", 2)
        write_checkpoint({"a": 1}, path)
    with pytest.raises(FileFormatError, match="newer version"):
        read_checkpoint(path)
    for tree in (3, {"$dict": 3}, {"$dict": [[[], 1]]}, {"a": 1, "b": 2}, {"$tensor": "nowhere"}, {"$list": [1]}):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "_packed", lambda state, path, tensors, tree=tree: tree)
            write_checkpoint({}, path)
        with pytest.raises(FileFormatError, match="its record cannot be read"):
            read_checkpoint(path)


def test_a_checkpoint_of_something_else_is_no_run(tmp_path: Path) -> None:
    write_checkpoint({"best": {"epoch": 1}, "elbo": {}}, os.fspath(tmp_path / "checkpoint.safetensors"))
    with pytest.raises(FileFormatError, match=r"no checkpoint of a run, it holds \['best', 'elbo'\]"):
        run(bayesian_net(), out=tmp_path)


# ---- a full disk -----------------------------------------------------------------------------------------------------


OPTIONS: dict[str, Any] = {"validation": blobs(20, seed=2), "patience": 3, "save_every": 0, "batch_size": 15}


class Failing:
    """A function that does what `inner` does, but fails the n-th time; 0: never."""

    def __init__(self, inner: Any, n: int, error: BaseException) -> None:
        self.inner, self.n, self.error, self.calls = inner, n, error, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == self.n:
            raise self.error
        return self.inner(*args)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], int, int]:
    """Where a run ends, and how many files it writes and how many it renames."""
    fsync, replace = (Failing(inner, 0, OSError()) for inner in (os.fsync, os.replace))
    net = plain_net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "replace", replace)
        run(net, out=tmp_path_factory.mktemp("run"), **OPTIONS)
    return values(net), fsync.calls, replace.calls


def test_a_full_disk_at_any_write_is_a_clear_error_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: tuple[dict[str, Tensor], int, int]
) -> None:
    expected, writes, _ = uninterrupted
    assert writes >= 10
    for write in range(1, writes + 1):
        out = tmp_path / str(write)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Failing(os.fsync, write, OSError(errno.ENOSPC, "No space left on device")))
            with pytest.raises(
                OSError, match=r"No space left on device; .*make room and start the run again"
            ) as caught:
                run(plain_net(), out=out, **OPTIONS)
        assert caught.value.errno == errno.ENOSPC
        assert not [name for name in os.listdir(out) if name.endswith(".tmp")]
        if write > 2:  # metrics.jsonl comes first
            read_checkpoint(os.fspath(out / "checkpoint.safetensors"))
        net = plain_net()
        history = run(net, out=out, **OPTIONS)
        assert same(net, expected), write
        assert history.column("epoch") == [0, 1]


@pytest.mark.slow
def test_a_file_size_limit_of_the_system_stops_a_run_cleanly(tmp_path: Path) -> None:
    """A disk that is really full, as far as a test can have one: the kernel refuses to write more."""
    expected = bayesian_net()
    run(expected, epochs=3)
    run(bayesian_net(), epochs=1, out=tmp_path)
    size = (tmp_path / "checkpoint.safetensors").stat().st_size
    code = f"""
import resource, signal, sys
sys.path.insert(0, {os.fspath(HERE)!r})
from small_runs import bayesian_net, run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, resource.RLIM_INFINITY))
run(bayesian_net(), epochs=3, out={os.fspath(tmp_path)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "File too large; the last checkpoint there is intact: make room and start" in done.stderr
    net = bayesian_net()
    history = run(net, epochs=3, out=tmp_path)
    assert same(net, expected)
    assert history.column("epoch") == [0, 1, 2]


# ---- a kill between two renames --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL where it hurts most."""


def test_a_run_killed_before_any_rename_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: tuple[dict[str, Tensor], int, int]
) -> None:
    expected, _, renames = uninterrupted
    assert renames >= 15
    missing = set()
    for rename in range(1, renames + 1):
        out = tmp_path / str(rename)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", Failing(os.replace, rename, Killed()))
            with pytest.raises(Killed):
                run(plain_net(), out=out, **OPTIONS)
        names = ("checkpoint", "best")
        missing |= {f"{one}.previous" for one in names if (out / f"{one}.previous.safetensors").exists()
                    and not (out / f"{one}.safetensors").exists()}  # fmt: skip
        net = plain_net()
        history = run(net, out=out, **OPTIONS)
        assert same(net, expected), rename
        assert history.column("epoch") == [0, 1]
    assert missing == {"checkpoint.previous", "best.previous"}  # both have been alone once


def test_what_a_killed_run_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.safetensors.12345678.tmp").write_bytes(b"half")
    (tmp_path / "notes.tmp").write_bytes(b"the user's own")
    run(bayesian_net(), out=tmp_path)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == ["notes.tmp"]


class Counting:
    """Cross-entropy that counts training steps."""

    steps = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.steps += output.requires_grad
        return F.cross_entropy(output, target)


def test_a_damaged_checkpoint_stops_a_run_until_it_is_deleted(tmp_path: Path) -> None:
    expected = bayesian_net()
    run(expected, epochs=3, likelihood=Counting())
    run(bayesian_net(), likelihood=Counting(), out=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    net, likelihood = bayesian_net(), Counting()
    before = values(net)
    with pytest.raises(FileFormatError, match="is kept: delete"):
        run(net, epochs=3, likelihood=likelihood, out=tmp_path)
    assert same(net, before)
    path.unlink()
    history = run(net, epochs=3, likelihood=likelihood, out=tmp_path)
    assert same(net, expected)
    assert history.column("epoch") == [0, 1, 2]
    assert likelihood.steps == 6  # of 9: the checkpoint before was that of the first epoch


@pytest.mark.parametrize(("between", "saved"), [(0.0, [1, 2, 3, 4, 5]), (math.inf, [1, 5])])
def test_short_epochs_are_not_all_saved(
    between: float, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last always are, and a run ends the same either way."""
    monkeypatch.setattr(loop, "BETWEEN", between)
    epochs: list[int] = []
    write = loop.Checkpoints.save
    monkeypatch.setattr(
        loop.Checkpoints,
        "save",
        lambda self, name, state: epochs.append(state["run"]["epoch"]) or write(self, name, state),
    )
    run(plain_net(), epochs=5, out=tmp_path / "run", save_every=1e9)
    assert epochs == saved
