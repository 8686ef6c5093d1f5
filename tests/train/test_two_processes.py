"""Two processes on one machine: each sees its half, together they are one run."""

from __future__ import annotations

import collections
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import environment, program
from two_processes import Stopping, teacher, train_plain

INPUTS = torch.randn(75, 5, generator=torch.Generator().manual_seed(1))[:, 0].tolist()
WRITTEN = {"metrics.jsonl": 1, "checkpoint.safetensors": 2, "checkpoint.previous.safetensors": 1, "net.safetensors": 1}


def reports(folder: Path, way: str) -> list[dict[str, Any]]:
    """What each process of two_processes.py says."""
    python, path = program("two_processes.py")
    environ = environment()
    launcher = []
    if way == "torchrun":
        address = ["--master_addr=127.0.0.1", f"--master_port={environ.pop('MASTER_PORT')}"]
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", *address]
    command = [python, *launcher, path, os.fspath(folder), way]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fabric", "torchrun"])
def test_two_processes_are_one_run(tmp_path: Path, way: str) -> None:
    first, second = reports(tmp_path, way)
    assert [(one["rank"], one["world"], one["backend"]) for one in (first, second)] == [(0, 2, "gloo"), (1, 2, "gloo")]
    _check_data(first, second)
    _check_equal(first, second)
    _check_files(first, second, tmp_path)
    _check_close(first["again"], first["state"])  # it went on from the checkpoint
    _check_plain(first, second)


def _check_data(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Every input once per epoch, over both; shares that average to one; all data counted once."""
    steps = len(first["seen"]) // 2
    for epoch in range(2):
        rows = slice(epoch * steps, (epoch + 1) * steps)
        seen = [value for one in (first, second) for batch in one["seen"][rows] for value in batch]
        assert sorted(seen) == pytest.approx(sorted(INPUTS))
    assert [len(a) + len(b) for a, b in zip(first["seen"], second["seen"], strict=True)] == [16, 16, 16, 16, 11] * 2
    assert [(a + b) / 2 for a, b in zip(first["shares"], second["shares"], strict=True)] == pytest.approx([1] * 10)
    assert {*first["num_data"], *second["num_data"]} == {75}


def _check_equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Noise differs between processes, and nothing else does."""
    assert not set(first["noise"]) & set(second["noise"])
    assert first["parameters"] == second["parameters"]  # at every step
    assert first["state"] == second["state"]
    assert first["again"] == second["again"]
    assert _columns(first["history"]) == _columns(second["history"])


def _check_files(first: dict[str, Any], second: dict[str, Any], folder: Path) -> None:
    """The first process writes, each file as often as there is something new."""
    assert collections.Counter(first["written"]) == WRITTEN
    assert second["written"] == []
    assert {name for name in os.listdir(folder / "whole") if name != ".lock"} == set(WRITTEN)
    lines = (folder / "whole" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == first["history"]


def _check_plain(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Without noise the split must not matter: unequal parts of a batch count by their size."""
    single = train_plain(None, 1, Stopping())
    assert first["shares"][4] != 1  # 11 inputs: 6 and 5
    assert first["plain"]["state"] == second["plain"]["state"]
    _check_close(first["plain"]["state"], single["state"])
    _check_close(_columns(first["plain"]["history"]), _columns(single["history"]))
    taught = train_plain(None, 1, "categorical", teacher=teacher(), teacher_weight=0.5)
    assert first["taught"]["state"] == second["taught"]["state"]
    _check_close(first["taught"]["state"], taught["state"])
    _check_close(_columns(first["taught"]["history"]), _columns(taught["history"]))
    for one in (first, second):  # Ctrl-C in the second process stopped both, and both went on
        assert "stopped in epoch 0, step 3" in one["stopped"]
        _check_close(one["plain again"]["state"], one["plain"]["state"])
        _check_close(_columns(one["plain again"]["history"]), _columns(one["plain"]["history"]))


def _columns(epochs: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {name: [epoch[name] for epoch in epochs] for name in epochs[0] if name != "seconds"}


def _check_close(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), name
