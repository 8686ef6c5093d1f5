"""Every method on the digits, with the options and rates of its row in the table: is it accurate, does it notice?

    python -m experiments.run methods         # needs no data set: a quarter of an hour on one core
    python -m experiments.run method_rates    # the rates that were tried, judged on validation digits alone

The recipe is that of the presets `ours/digits-...`: the plain network, converted, and a few epochs more.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch

import bnn
from bnn.data import Part, synthetic_ood
from bnn.train import Recipe, run_recipe
from experiments.scores import class_scores, detection_scores

PRESET = "ours/digits-from-trained"
M = 16  # sides of U, and ranks, as in the presets
LAST = "fc.Linear1"
ON = {"fcg-w": LAST}  # a method that is for one layer; of the digits net all would have 3e8 parameters
WRITERS = 1000  # of the training digits; they are in the order of their writers
FOREIGN = ("letters", "noise", "shuffled")


def recipe(settings: dict[str, Any]) -> Recipe:
    """The recipe of a method; `training` may say another, as "1e-3, 10 epochs" (plain rate, epochs converted)."""
    name = settings["method"]
    method = bnn.methods()[name]
    base = Recipe.preset(PRESET).but(seed=settings["seed"], calibrate=False, name=f"digits-{name}")
    if "training" in settings:
        lr, epochs = settings["training"].removesuffix(" epochs").split(", ")
        base = base.but(
            pretrain={"lr": float(lr), "epochs": settings["plain_epochs"]}, schedule={"epochs": int(epochs)}
        )
    if method.family == "deterministic":
        assert base.pretrain is not None
        return base.but(method={"inference": "deterministic"}, schedule=base.pretrain, pretrain=None).but(
            members=method.networks
        )
    inference = "ffg-u" if method.networks > 1 else name
    entry = {"inference": inference, **bnn.methods()[inference].sizes(M, M)}
    own = {"kl_weight": method.kl_weight, "samples": method.members, "lr": method.lr}
    chosen = {"inference": {ON[name]: entry}} if name in ON else entry
    return base.but(method=chosen, schedule=own, members=method.networks, laplace=method.laplace)


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """A run, scored on the test digits, and the mutual information there and on inputs that are no digits."""
    data = bnn.data.load("digits", validation=0.1)
    net, found = _trained(settings, data)
    inside = _predicted(net, data.test, settings)
    outside = {name: _predicted(net, synthetic_ood(name, data.test), settings) for name in FOREIGN}
    found |= class_scores(inside.probs, data.test.y) | {"parameters": bnn.parameter_count(net)}
    found |= {"mutual_information": float(inside.epistemic.mean())}
    found |= {f"mutual_information_{name}": float(one.epistemic.mean()) for name, one in outside.items()}
    return found | detection_scores(inside, outside)


def validated(settings: dict[str, Any]) -> dict[str, Any]:
    """A run on the first 1,000 training digits, scored on the other 297, which other people wrote."""
    whole = bnn.data.load("digits")
    parts = (whole.train.subset(slice(0, WRITERS)), whole.train.subset(slice(WRITERS, None)))
    data = replace(whole, train=parts[0], validation=parts[1], test=None)
    net, found = _trained(settings, data)
    return found | class_scores(_predicted(net, parts[1], settings).probs, parts[1].y)


def _trained(settings: dict[str, Any], data: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The network, and its loss (data and weighted KL, per input) in the first and the last epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what projecting to M = 16 loses, training brings back
        done = run_recipe(recipe(settings), data=data, progress=False, tensorboard=False)
    history = done.history
    assert history is not None
    losses = [_loss(epoch, len(data.train)) for epoch in history.epochs]
    falls = all(map(math.isfinite, losses)) and losses[-1] < losses[0]
    return done.network, {"first_loss": losses[0], "last_loss": losses[-1], "falls": falls}


def _loss(epoch: dict[str, Any], inputs: int) -> float:
    kl = (epoch.get("kl_u") or 0.0) + (epoch.get("kl_lamda") or 0.0)
    return epoch["data"] + epoch.get("kl_scale", 0.0) * kl / inputs


def _predicted(net: torch.nn.Module, part: Part, settings: dict[str, Any]) -> Any:
    method = bnn.methods()[settings["method"]]
    samples = settings["samples"] if method.family != "deterministic" else method.networks if method.networks > 1 else 0
    generator = torch.Generator().manual_seed(settings["seed"])
    return bnn.predict(net, part.inputs(), samples=samples, likelihood="categorical", generator=generator)
