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

INPUTS = torch.randn(75, 5, generator=torch.Generator().manual_seed(1))[:, 0].tolist()
FILES = {"checkpoint.safetensors", "checkpoint.previous.safetensors", "metrics.jsonl", "net.safetensors"}


def reports(folder: Path, way: str, kind: str) -> list[dict[str, Any]]:
    """What each process of two_processes.py says."""
    python, path = program("two_processes.py")
    environ = environment()
    launcher = []
    if way == "torchrun":
        port = environ.pop("MASTER_PORT")
        address = ["--master_addr=127.0.0.1", f"--master_port={port}"]
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", *address]
    command = [python, *launcher, path, os.fspath(folder), way, kind]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fabric", "torchrun"])
def test_two_processes_are_one_run(tmp_path: Path, way: str) -> None:
    first, second = reports(tmp_path, way, "bayesian")
    assert [(one["rank"], one["world"], one["backend"]) for one in (first, second)] == [(0, 2, "gloo"), (1, 2, "gloo")]
    _check_data(first, second)
    assert not set(first["noise"]) & set(second["noise"])  # every step of every process draws its own
    assert first["parameters"] == second["parameters"]  # at every step
    assert first["state"] == second["state"]
    for name in first["history"][0]:
        if name != "seconds":
            assert [e[name] for e in first["history"]] == [e[name] for e in second["history"]], name
    written = collections.Counter(first["written"])
    assert set(written) == FILES
    assert written == collections.Counter(
        {"metrics.jsonl": 1, "checkpoint.safetensors": 2, "checkpoint.previous.safetensors": 1, "net.safetensors": 1}
    )
    assert second["written"] == []
    assert set(os.listdir(tmp_path / "whole")) == FILES
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == first["history"]
    assert first["again"] == second["again"]
    _check_close(first["again"], first["state"])  # it went on from the checkpoint


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


def _check_close(one: dict[str, list[float]], other: dict[str, list[float]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), name


@pytest.mark.slow
def test_two_processes_train_a_plain_network_as_one_does(tmp_path: Path) -> None:
    """Without noise the split must not matter: unequal halves of a batch count by their size."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (single,) = reports(tmp_path / "one", "single", "plain")
    first, second = reports(tmp_path / "two", "fabric", "plain")
    assert first["shares"][4] != 1  # 11 inputs: 6 and 5
    assert first["state"] == second["state"]
    _check_close(first["state"], single["state"])
    for name in single["history"][0]:
        if name != "seconds":
            values = [[epoch[name] for epoch in one["history"]] for one in (first, single)]
            assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-5), name
