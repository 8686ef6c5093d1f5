"""Our recipes side by side: quality, calibration, out-of-distribution detection and size, as one table and one JSON.

    BNN_DATA=<folder with the data sets> python experiments/our_recipes.py --out runs/ours
    python experiments/our_recipes.py --digits --out runs/digits            # needs no data set

Runs write checkpoints and resume where they stopped; a finished one is only evaluated.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import torch

import bnn
from bnn.train import Recipe, run_recipe

NAMES = ["deterministic", "from-trained", "ensemble", "compressed-ensemble", "ensemble-u", "from-scratch", "ffg"]
OOD = ["mnist", "kmnist", "notmnist"]


def row(name: str, evaluation: Any, parameters: int) -> dict[str, Any]:
    """The numbers of one recipe, as people compare them."""
    return {"recipe": name, "parameters": parameters, **evaluation.to_dict()}


def folder(out: str, name: str, seed: int) -> str:
    return os.path.join(out, f"{name}-{seed}")


def started(recipe: Recipe, out: str) -> Recipe:
    """The recipe with the plain networks that another one has trained already: the same seeds give the same ones."""
    plain = os.path.join(
        folder(out, "deterministic" if recipe.members == 1 else "ensemble", recipe.seed), "net.safetensors"
    )
    return recipe.but(pretrain=None, weights=plain) if recipe.pretrain and os.path.exists(plain) else recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", action="store_true", help="the small recipes, on the digits of the package")
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--out", default="runs/ours")
    parser.add_argument("--result", default=None, help="the JSON; <out>/results.json by default")
    parser.add_argument("--first", type=int, default=None, help="only the first so many images of each part")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kind = "digits-" if args.digits else ""
    data, rows = None, []
    for name in args.only:
        recipe = started(Recipe.preset(f"ours/{kind}{name}").but(seed=args.seed, calibrate=False), args.out)
        recipe = recipe if args.first is None else recipe.but(data={**recipe.data, "first": args.first})
        data = data or bnn.data.load(**recipe.data)
        outcome = run_recipe(recipe, folder(args.out, name, args.seed), data=data, tensorboard=False, progress=True)
        evaluation = bnn.evaluate(outcome.net, data, ood=None if args.digits else OOD, likelihood=outcome.likelihood)
        print(f"\n## {recipe.name}: {recipe.about}\n{evaluation}", flush=True)
        rows.append(row(name, evaluation, bnn.parameter_count(outcome.net)))
        with open(args.result or os.path.join(args.out, "results.json"), "w", encoding="utf-8") as file:
            json.dump(
                {"torch": torch.__version__, "seed": args.seed, "first": args.first, "rows": rows}, file, indent=1
            )


if __name__ == "__main__":
    main()
