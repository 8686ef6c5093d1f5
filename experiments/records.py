"""The runs of a case as one JSON file; what they scored on every input beside it, in files that git ignores."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import filelock
import numpy as np
import torch

from bnn._common.atomic import write_atomically
from bnn._common.records import encoded
from experiments.case import HERE, Case

CLOSE = 1e-6  # averages of the same scores, summed in another order and type
OUTPUTS = ("experiments/results", "docs")  # what runs and pages write: it makes no commit dirty


class Records:
    """All records of a case by their keys: settings, metrics, seconds, versions and commit, and paired differences.

    Args:
        case: whose.
        folder: of the results; `per_input` in it holds the scores of every input.
    """

    def __init__(self, case: Case, folder: pathlib.Path) -> None:
        self.case, self.path = case, folder / f"{case.name}.json"
        self.per_input = folder / "per_input" / case.name
        # of the code that runs, whatever becomes of the files meanwhile
        self.origin = {"threads": torch.get_num_threads(), "versions": versions(), "commit": commit()}

    def read(self) -> dict[str, dict[str, Any]]:
        """What is stored."""
        return json.loads(self.path.read_text(encoding="utf-8"))["runs"] if self.path.exists() else {}

    def done(self) -> dict[str, dict[str, Any]]:
        """The records that are of the case as it is: same runs, same settings."""
        stored, wanted = self.read(), {self.case.key(axes): self.case.settings(axes) for axes in self.case.runs()}
        return {key: stored[key] for key, settings in wanted.items() if stored.get(key, {}).get("settings") == settings}

    def add(self, axes: Mapping[str, Any], found: Mapping[str, Any], seconds: float) -> None:
        """Stores a run: metrics in the JSON; arrays of `per_input`, named as the metrics they average to, beside it."""
        key = self.case.key(axes)
        metrics = dict(found)
        if arrays := metrics.pop("per_input", None):
            self.per_input.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(self._scores(key), **arrays)
        record = {"settings": self.case.settings(axes), "metrics": metrics, "seconds": round(seconds, 2)}
        with self._changing() as runs:
            runs[key] = encoded(record | self.origin)

    def add_paired(self) -> None:
        """Differences to the baselines, wherever the scores of both are at hand: mean and standard error.

        Differences of other runs than those that are stored, of one that was run again elsewhere, are taken out.
        """
        with self._changing() as runs:
            for axes in self.case.runs():
                key, other = self.case.key(axes), self.case.baseline_key(axes)
                if other and key in runs and other in runs:
                    own, base = self._scores_of(key, runs[key]), self._scores_of(other, runs[other])
                    if own and base:
                        runs[key]["paired"] = {"with": other} | encoded(paired(own, base))
                    elif not are_of(runs[key].get("paired", {}), runs[key], runs[other]):
                        del runs[key]["paired"]

    def _scores_of(self, key: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of every input of a record; {} where there are none, or where they are of another run."""
        if not self._scores(key).exists():
            return {}
        with np.load(self._scores(key)) as stored:
            found = dict(stored)
        same = (
            math.isclose(record["metrics"][name], found[name].mean(), rel_tol=CLOSE) for name in known(record, found)
        )
        return found if all(same) else {}

    def _scores(self, key: str) -> pathlib.Path:
        return self.per_input / f"{re.sub('[^a-zA-Z0-9=.]+', '_', key)}.npz"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The records, written when the block ends: whole, in the order of the case, one process at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.path.with_suffix(".lock")):
            runs = self.read()
            yield runs
            ordered = {key: runs[key] for key in map(self.case.key, self.case.runs()) if key in runs}
            text = json.dumps({"case": self.case.name, "runs": ordered | runs}, indent=1) + "\n"
            write_atomically(text.encode(), os.fspath(self.path))


def paired(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """For all scores that both have, the mean of the differences over inputs and its standard error.

    >>> paired({"nll": np.array([1.0, 3.0])}, {"nll": np.array([1.0, 1.0])})
    {'nll': (1.0, 1.0)}
    """
    found = {}
    for name in own:
        if name in base and own[name].shape == base[name].shape:
            gaps = own[name].astype(float) - base[name].astype(float)
            found[name] = (float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))))
    return found


def are_of(found: Mapping[str, Any], own: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether paired differences are those of two records.

    >>> of_2, of_3 = {"metrics": {"nll": 2.0}}, {"metrics": {"nll": 3.0}}
    >>> are_of({"with": "x", "nll": [1.0, 0.1]}, of_3, of_2), are_of({"with": "x", "nll": [2.0, 0.1]}, of_3, of_2)
    (True, False)
    """
    names = [name for name in known(own, found) if name in base["metrics"]]
    gaps = {name: own["metrics"][name] - base["metrics"][name] for name in names}
    return all(math.isclose(gaps[name], found[name][0], rel_tol=CLOSE, abs_tol=CLOSE) for name in names)


def known(record: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The metrics of a record that are also in `found`."""
    return [name for name in record["metrics"] if name in found]


def versions() -> dict[str, str]:
    return {"bnn": version("bayesianize"), "torch": str(torch.__version__), "python": platform.python_version()}


def commit(root: pathlib.Path = HERE.parent) -> str:
    """The commit that runs, with "-dirty" where files differ from it, results and pages aside."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in OUTPUTS))
    return head + ("-dirty" if changed else "")


def _git(root: pathlib.Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=root)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
