"""Is a commit slower than another? Both versions run the same rows in turns, each in a process of its own.

    python benchmarks/compare.py BASE [--new COMMIT] [--rows 'predict/resnet18/*'] [--seconds 6] [--threads 1]
    python benchmarks/compare.py --list

BASE is a commit; it is compared with the library as it is in this folder, or with another commit by --new. Both are
copied into a temporary folder first, so that edits during the run change nothing. The scripts are those of this folder
for both. A round is one turn of each, and they begin in turns; a turn of a short row is as many calls as take 20 ms. A
row has as many rounds as take --seconds, but at least --rounds. Its ratio is the median over rounds of new / base,
because what slows one of two neighbours slows the other; in brackets its 95 % interval.

A row that became slower by more than 5 % (--tolerance) is timed again in fresh processes, because where a process finds
its memory can make a few per cent; if it is slower again, the run ends with status 1. Compare a commit with itself to
see how far the machine can be trusted. A whole run writes benchmarks/results/compare.json; a choice of rows is written
only with --out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from common import chosen, heading, write
from compared import row_names

ROOT = Path(__file__).resolve().parent.parent
SHORT_TURN = 0.02  # seconds that a turn takes at least
MOST_ROUNDS = 200


class Version:
    """A version of the library, running in a process of its own.

    Args:
        folder: holds its `bnn`.
        threads, seed: of the process.
    """

    def __init__(self, folder: Path, threads: int, seed: int) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / "compared.py")]
        self.process = subprocess.Popen(
            [*command, "--threads", str(threads), "--seed", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(folder)},
            text=True,
        )
        found = self._answer()["bnn"]
        if Path(found) != folder / "bnn":
            raise SystemExit(f"expected the library in {folder / 'bnn'}, the process imported {found}")

    def run(self, row: str, calls: int = 1) -> float:
        """Seconds of so many calls of a row; RuntimeError if this version cannot run it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"row": row, "calls": calls}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"]

    def stop(self) -> None:
        """Ends the process, which waits for its next row."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process ended before its time; its error stands above")
        return json.loads(line)


def git(*arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def copy_version(commit: str | None, folder: Path) -> str:
    """Puts the library of a commit, or as it is here (None), into `folder`; returns what to call it."""
    if commit is None:
        shutil.copytree(ROOT / "bnn", folder / "bnn", ignore=shutil.ignore_patterns("__pycache__"))
        changed = " with changes" if git("status", "--porcelain", "--", "bnn") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    name = git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}")
    folder.mkdir()
    archive = folder / "bnn.zip"
    git("archive", "--format=zip", f"--output={archive}", name, "bnn")
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return name


def measure(row: str, base: Version, new: Version, rounds: int, seconds: float) -> dict[str, Any]:
    """Times of both versions over interleaved rounds, and their ratio."""
    versions = {"base": base, "new": new}
    for version in versions.values():
        version.run(row)  # builds the network, fills caches
    once = {name: version.run(row) for name, version in versions.items()}
    calls = max(1, math.ceil(SHORT_TURN / max(once.values())))
    rounds = max(rounds, min(MOST_ROUNDS, int(seconds / (calls * sum(once.values())))))
    times: dict[str, list[float]] = {name: [] for name in versions}
    for turn in range(rounds):
        for name in sorted(versions, reverse=bool(turn % 2)):
            times[name].append(versions[name].run(row, calls) / calls)
    ratio, interval = median_quotient(times["new"], times["base"])
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {"row": row, "calls": calls, "rounds": rounds, "seconds": medians, "ratio": ratio, "interval": interval}


def median_quotient(one: list[float], other: list[float]) -> tuple[float, list[float]]:
    """The median over rounds of one / other, and its 95 % interval, which assumes nothing but independent rounds.

    How many of n quotients lie below the true median is binomial: n / 2, give or take sqrt(n).
    """
    quotients = sorted(mine / its for mine, its in zip(one, other, strict=True))
    low = max(0, math.floor((len(quotients) - 1.96 * math.sqrt(len(quotients))) / 2))
    return statistics.median(quotients), [quotients[low], quotients[-1 - low]]


def compare(args: argparse.Namespace, names: list[str], folder: Path) -> dict[str, Any]:
    """All rows, printed as they come."""
    titles = {
        "base": copy_version(args.base, folder / "base"),
        "new": copy_version(args.new, folder / "new"),
    }
    print(f"new ({titles['new']}) over base ({titles['base']}), medians of interleaved rounds", flush=True)
    rows = run(names, folder, args)
    worse = [row["row"] for row in rows if slower(row, args.tolerance)]
    if worse:
        print("once more, in fresh processes:", flush=True)
        first = {row["row"]: row for row in rows}
        again = {row["row"]: row | {"first": first[row["row"]]} for row in run(worse, folder, args)}
        rows = [again.get(row["row"], row) for row in rows]
    return heading(args, torch.device("cpu")) | titles | {"tolerance": args.tolerance, "rows": rows}


def run(names: list[str], folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """These rows of both versions, in two new processes."""
    base, new = (Version(folder / side, args.threads, args.seed) for side in ("base", "new"))
    rows: list[dict[str, Any]] = []
    for name in names:
        try:
            rows.append(measure(name, base, new, args.rounds, args.seconds))
        except RuntimeError as error:
            rows.append({"row": name, "error": str(error)})
        print(shown(rows[-1], args.tolerance), flush=True)
    base.stop()
    new.stop()
    return rows


def slower(row: dict[str, Any], tolerance: float) -> bool:
    """Whether the new version takes longer than is tolerated."""
    return "ratio" in row and row["ratio"] > 1 + tolerance


def shown(row: dict[str, Any], tolerance: float) -> str:
    """A row as it is printed."""
    if "error" in row:
        return f"{row['row']:36s} cannot run: {row['error']}"
    mark = "   WORSE" if slower(row, tolerance) else ""
    interval = "({:.2f} to {:.2f})".format(*row["interval"])
    rounds = f"{row['rounds']} rounds of {row['calls']}"
    return (
        f"{row['row']:36s} {row['ratio']:.3f} {interval}   base {1e3 * row['seconds']['base']:.2f} ms, {rounds}{mark}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", metavar="BASE", help="the commit to compare with")
    parser.add_argument("--new", metavar="COMMIT", help="default: the library as it is in this folder")
    parser.add_argument("--rows", nargs="+", metavar="GLOB", help="rows to time, by name; default: all")
    parser.add_argument("--list", action="store_true", help="print the names of all rows")
    parser.add_argument("--rounds", type=int, default=5, help="of every row, at least")
    parser.add_argument("--seconds", type=float, default=6.0, help="that a row may take for more rounds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the result")
    args = parser.parse_args()
    names = chosen(row_names(), args.rows)
    if args.list:
        print("\n".join(names))
        return
    if args.base is None:
        parser.error("give the commit to compare with, as in: compare.py HEAD~1")
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(args, names, Path(folder).resolve())
    write(result, args.out, default="compare.json", complete=names == row_names())
    failed = [row["row"] for row in result["rows"] if "error" in row or slower(row, args.tolerance)]
    if failed:
        sys.exit(f"worse by more than {args.tolerance:.0%}, or not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
