"""What pruning costs on the digits: how much is kept, by which criterion, and what a few more epochs give back.

python -m experiments.run pruning      # BNN_NETS=<folder>: where the trained networks are kept
"""

from __future__ import annotations

from typing import Any

import torch

import bnn
from bnn.train import Recipe, Schedule, run_recipe
from experiments.nets import folder
from experiments.scores import class_scores

TRAINING: dict[str, Any] = {"pretrain": {"epochs": 20, "lr": 1e-3}, "schedule": {"epochs": 10}}
PRESETS = {"ffg-u": "ours/digits-from-trained", "ffg-w": "ours/digits-ffg"}


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """A run: the trained network, pruned as "keep criterion epochs" says, and scored on the test digits."""
    method, seed = settings["method"], settings["seed"]
    recipe = Recipe.preset(PRESETS[method]).but(seed=seed, calibrate=False, **TRAINING)
    data = bnn.data.load(**recipe.data)
    net = run_recipe(recipe, folder(f"pruning_{method}_{seed}"), data=data, progress=False, tensorboard=False).network
    keep, by, epochs = settings["pruning"].split()
    bnn.prune_(net, float(keep), by, activations=data.train if by == "output" else None)
    if int(epochs):
        schedule = Schedule.of(recipe.schedule.to_dict() | {"epochs": int(epochs)})
        bnn.fit(net, data, schedule=schedule, seed=seed, progress=False, tensorboard=False)
    x, y = data.test.tensors()
    generator = torch.Generator().manual_seed(seed)
    found = class_scores(bnn.predict(net, x, samples=settings["samples"], generator=generator).probs, y)
    return found | {"parameters": bnn.parameter_count(net)}
