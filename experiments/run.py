"""Runs what is missing of a case, one record per run; stopped or killed, the same command goes on.

    export BNN_DATA=<folder> BNN_NETS=<folder>
    python -m experiments.run after_conversion         # experiments/cases/after_conversion.toml
    python -m experiments.run after_conversion --list  # what is open, and how long it takes
    python -m experiments.run after_conversion --only net=cifar_resnet20,fashion_mlp fraction=0.25
    python -m experiments.run after_conversion --only start=budget --again  # what is there, too

Data are found through BNN_DATA, trained networks through BNN_NETS (`experiments/nets.py`); runs that need what is not
there are skipped with a word.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections import Counter
from typing import Any

import torch

from experiments.case import RESULTS, Case, Settings
from experiments.records import Records


def chosen(axes: Settings, only: list[str]) -> bool:
    """Whether a run is one of those that `only` names.

    >>> chosen({"net": "mlp", "seed": 1}, ["net=mlp,cnn"]), chosen({"net": "mlp", "seed": 1}, ["seed=0"])
    (True, False)
    """
    wanted = [one.partition("=") for one in only]
    return all(str(axes.get(name)) in values.split(",") for name, _, values in wanted)


def open_runs(case: Case, records: Records, only: list[str], again: bool = False) -> list[Settings]:
    """The runs that are missing, or whose settings the case has changed since; `again`: all of them."""
    for one in only:
        if one.partition("=")[0] not in (known := sorted({axis for axes in case.runs() for axis in axes})):
            raise SystemExit(f"--only {one}: expected axis=value,value with an axis of {known}")
    done = records.done()
    return [axes for axes in case.runs() if chosen(axes, only) and (again or case.key(axes) not in done)]


def estimate(case: Case, records: Records, axes: Settings) -> float | None:
    """Seconds that a run takes: the mean over the finished runs that share the most settings with it."""
    alike: dict[int, list[float]] = {}
    for record in records.done().values():
        same = sum(record["settings"].get(name) == value for name, value in axes.items())
        alike.setdefault(same, []).append(record["seconds"])
    return None if not alike else sum(alike[max(alike)]) / len(alike[max(alike)])


def show(case: Case, records: Records, runs: list[Settings]) -> None:
    """Prints what is open."""
    guesses = [estimate(case, records, axes) for axes in runs]
    for axes, guess in zip(runs, guesses, strict=True):
        print(f"{'?' if guess is None else f'{guess:.0f}':>8} s  {case.key(axes)}")
    total = sum(guess or 0.0 for guess in guesses) / 60
    print(
        f"{len(runs)} of {len(case.runs())} runs are open: {'?' if None in guesses else f'about {total:.0f} minutes'}"
    )


def run(case: Case, records: Records, runs: list[Settings], again: bool = False) -> None:
    """Runs them one after another; those whose data or networks are not there are counted by what is missing."""
    function, skipped = case.function(), Counter[str]()
    for i, axes in enumerate(runs):
        if not again and case.key(axes) in records.done():  # by another process since
            continue
        settings = case.settings(axes)
        torch.manual_seed(settings.get("seed", 0))
        begin = time.perf_counter()
        try:
            found: dict[str, Any] = function(settings)
        except FileNotFoundError as error:
            skipped[str(error)] += 1
            continue
        records.add(axes, found, time.perf_counter() - begin)
        shown = {name: value for name, value in found.items() if isinstance(value, float | int)}
        print(f"[{i + 1}/{len(runs)}] {case.key(axes)}:", *(f"{n} {v:.4g}" for n, v in shown.items()), flush=True)
    records.add_paired()
    for missing, number in skipped.items():
        print(f"skipped {number} runs: {missing}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="a name in experiments/cases, or a .toml file")
    parser.add_argument("--list", action="store_true", help="only show what is open")
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS=VALUE,VALUE")
    parser.add_argument("--again", action="store_true", help="repeat also what is there, after the code has changed")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    case = Case.named(args.case)
    records = Records(case, args.out)
    runs = open_runs(case, records, args.only, args.again)
    if args.list:
        show(case, records, runs)
        return
    run(case, records, runs, args.again)
    print(f"{case.name}: {len(records.done())} of {len(case.runs())} runs are there")


if __name__ == "__main__":
    main()
