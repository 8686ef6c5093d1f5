"""What a finished run leaves behind, and how it is read back without its data."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from torch import nn

from bnn import likelihoods
from bnn._common.atomic import write_atomically
from bnn._common.errors import NetworkNeeded
from bnn.data.dataset import Data, TargetScale
from bnn.data.sources import preparation
from bnn.ensemble import Ensemble
from bnn.files import FileFormatError, load_, save
from bnn.train.build import build_net
from bnn.train.history import History
from bnn.train.recipe import Recipe

RUN, NET = "run.json", "net.safetensors"


@dataclass
class Outcome:
    """A finished run: what `run_recipe` gives and `load_run` reads back.

    Args:
        net: the trained network.
        likelihood: the likelihood as trained; `bnn.predict(net, x, likelihood=...)` takes it.
        task, classes, target, preparation: what is needed to read new inputs and to understand predictions, as in
            `bnn.data.Data`.
        recipe: what was carried out, with the KL weight that was chosen; None for a run of `bnn.fit`.
        history: of the main training; None when read back.
        candidates: validation NLL by KL weight, where it was chosen.
    """

    net: nn.Module
    likelihood: Any
    task: str
    in_shape: tuple[int, ...]
    out_features: int
    classes: tuple[str, ...] = ()
    target: TargetScale | None = None
    preparation: Any = None
    recipe: Recipe | None = None
    history: History | None = None
    candidates: dict[str, float] | None = None

    @classmethod
    def of(cls, net: nn.Module, data: Data, likelihood: Any, outputs: int, **more: Any) -> Outcome:
        """The outcome of training `net` with `outputs` outputs on `data`."""
        about = (data.task, data.in_shape, outputs, data.classes, data.target, data.preparation)
        return cls(net, likelihood, *about, **more)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the network."""
        return {
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "likelihood": likelihoods.record(self.likelihood),
            "task": self.task,
            "in_shape": list(self.in_shape),
            "out_features": self.out_features,
            "classes": list(self.classes),
            "target": None if self.target is None else self.target.to_dict(),
            "preparation": None if self.preparation is None else self.preparation.to_dict(),
            "candidates": self.candidates,
        }

    def write(self, folder: str) -> None:
        """Writes the network and what is needed to use it."""
        save(self.net, os.path.join(folder, NET))
        write_atomically(json.dumps(self.to_dict(), indent=1).encode(), os.path.join(folder, RUN))


def load_run(folder: str | os.PathLike[str], net: nn.Module | None = None) -> Outcome:
    """A finished run, read back from its folder; needs neither the data nor anything else.

    Args:
        folder: `out` of `run_recipe`, or of `bnn.fit` with a `bnn.data.Data`.
        net: a plain network of the same architecture, for runs of `bnn.fit`: only recipes say how to build theirs.

    Raises:
        FileNotFoundError: the folder holds no finished run.
        FileFormatError: its files are damaged.
    """
    path = os.path.join(folder, RUN)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{os.fspath(folder)} holds no finished run: there is no {RUN}; run_recipe writes it, and bnn.fit with "
            "out= and a bnn.data.Data, when they end"
        )
    try:
        outcome, recipe = _read(path)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if net is None:
        if recipe is None:
            raise NetworkNeeded(
                f"{path} is of bnn.fit, which does not know how to build the network: pass net=, a plain one"
            )
        net = build_net(recipe.net, outcome["in_shape"], outcome["out_features"])
        net = Ensemble(net, members=recipe.members) if recipe.members > 1 else net
    load_(net, os.path.join(folder, NET))
    return Outcome(net, recipe=recipe, **outcome)


def _read(path: str) -> tuple[dict[str, Any], Recipe | None]:
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    recipe = None if stored["recipe"] is None else Recipe.from_dict(stored["recipe"])
    target = stored["target"]
    return {
        "likelihood": likelihoods.from_record(stored["likelihood"]),
        "task": stored["task"],
        "in_shape": tuple(stored["in_shape"]),
        "out_features": stored["out_features"],
        "classes": tuple(stored["classes"]),
        "target": None if target is None else TargetScale(tuple(target["mean"]), tuple(target["sd"])),
        "preparation": None if stored["preparation"] is None else preparation(stored["preparation"]),
        "candidates": stored["candidates"],
    }, recipe
