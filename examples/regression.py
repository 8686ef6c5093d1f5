"""The paper's first figure: what posteriors of a small network say between and beyond two clusters of data.

    python examples/regression.py                # six posteriors are trained: some ten minutes on one core
    python examples/regression.py --steps 2000   # does it run? sds are still near their start, too small
    python examples/regression.py --again        # the exact posterior is sampled, too: pip install ".[examples]"

A hidden layer of 50 tanh units, every weight N(0, 16 / d_in), sees 100 points of y = cos(4 x + 0.8) + noise of sd 0.1.
The paper's text has this function, its appendix cos(0.4 x + 0.8), almost a straight line; experiments/two_clusters.py
says why the text is followed. Panels show mean and one to three sds of the function under

    FFG-W, FCG-W                a Gaussian over the weights: independent entries, or full covariance in every layer
    FFG-U, FCG-U, Ensemble-U    the same over inducing weights of 25 x 2 and 1 x 25, and a mixture of 8 points
    Laplace-U                   the curvature at the mode, over the inducing weights of the last layer
    NUTS                        the exact posterior, by Pyro; as in experiments/results/regression.json unless --again

The network has 151 weights, fewer than any of these has parameters: it shows how posteriors behave, not what they save.
The figure goes to --out, and what it shows, with the table that is printed, into a JSON file beside it. The README's is
made by `python -m experiments.run regression` and `python -m experiments.pages`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # experiments/ stands beside the package, not in it

from experiments.bands import draw, table
from experiments.case import RESULTS, Case
from experiments.records import Records, versions
from experiments.regression import run


def posteriors(steps: int, again: bool) -> dict[str, dict[str, Any]]:
    """What each posterior says; the exact one as stored, unless `again`, and without it where Pyro is missing."""
    case = Case.named("regression")
    stored = {one["settings"]["method"]: one["metrics"] for one in Records(case, RESULTS).done().values()}
    found = {}
    for axes in case.runs():
        name = axes["method"]
        if name == "NUTS" and name in stored and not again:
            found[name] = stored[name]
            continue
        torch.manual_seed(axes.get("seed", 0))
        try:
            found[name] = run(case.settings(axes) | {"steps": steps})
        except ImportError as error:
            print(f"{name} is left out: {error}")
        else:
            print(f"{name} is done", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("regression.png"))
    parser.add_argument("--steps", type=int, default=Case.named("regression").fixed["steps"], help="of training")
    parser.add_argument("--again", action="store_true", help="sample the exact posterior, too")
    args = parser.parse_args()
    found = posteriors(args.steps, args.again)
    print(table(found))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(found, Case.named("regression").fixed["data_seed"], args.out)
    report = {"steps": args.steps, "versions": versions(), "posteriors": found}
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
