"""Fashion-MNIST: what a small posterior is worth beside the methods that one would use instead.

A row is a model, and what is added to it after training, as "point-u + laplace":

    deterministic   a CNN with 188,234 parameters, trained for six epochs
    trained on      the same with the further epochs that converted networks get
    deep ensemble   three of them, as they are
    mc-dropout      the CNN trained with dropout before every layer, drawn at prediction
    ivon            the CNN trained by IVON (package ivon-opt), whose Gaussian becomes an `ffg` posterior
    ffg-w           mean and sd for every weight, from the trained CNN
    ffg-u, ensemble-u       inducing weights from the trained CNN, at a share of its parameters
    point-u         the control: the same factors without noise and without a KL
    small point-u   the same in fewer parameters: with a posterior for most directions it has the share of the others
    compressed, compressed point, compressed small point    three networks of ffg-u, of point-u, from three trained CNNs
    + temperature   one temperature for all logits, from validation data
    + laplace       a posterior for the last layer by `bnn.laplace_`, its prior chosen by validation data
    + marginal laplace      the same, its prior chosen by marginal likelihood, as usual
    + full laplace  the same for all directions of the last layer's inputs, not only those in which it has weights
    + most laplace  the same for 96 of 128 directions

Seed s starts from the CNNs 3 s, 3 s + 1 and 3 s + 2, single networks from the first of them. Where a method has a
setting to choose, it is trained with two on seed 0, and the validation NLL chooses for all seeds.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import bnn
from bnn import metrics
from bnn.data import Part
from bnn.functional.linalg import inverse_softplus
from bnn.nn.base import BayesianLayer
from experiments.data import images
from experiments.tables import LAST_LAYER_DRAWS, Sets, drawn_layers, kept, laplace_head, plain_layer, row, with_laplace_

MEMBERS = 3
ACTIVATIONS = 512
MOST = 96  # directions of the last layer's 128 inputs
# the settings that validation data choose from, on seed 0: dropout rate, learning rate, weight of the KL
CHOICES: dict[str, tuple[float, ...]] = {
    "mc-dropout": (0.05, 0.1),
    "ivon": (0.5, 0.2),
    "ffg-w": (0.1, 0.01),
    "ffg-u": (1.0, 0.1),
    "ensemble-u": (1.0, 0.1),
}
POINT = {"max_sd_u": 0}
POINTS = ("point-u", "small point-u")
FAMILIES = {"ffg-u": "ffg-u", "ensemble-u": "ensemble-u"} | dict.fromkeys(POINTS, "inducingdeterministic")
COMPRESSED = {"compressed": "ffg-u", "compressed point": "point-u", "compressed small point": "small point-u"}


def cnn() -> nn.Module:
    """Three strided convolutions and two linear layers for images (1, 28, 28)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One row of the table for one seed."""
    sets = loaded(settings["foreign"])
    base, _, ending = settings["row"].partition(" + ")
    base, _, each = base.partition(", draws of a member ")
    plain, plain_seconds = deterministic(MEMBERS * settings["seed"], sets, settings)
    net, seconds = model(base, sets, settings)
    if ending in ("full laplace", "most laplace"):
        plain_heads_(net)
    if ending.endswith("laplace"):
        with_laplace_(net, sets, settings, ending, MOST if ending == "most laplace" else None)
    elif ending == "temperature":
        bnn.calibrate_(net, sets.validation)
    found = row(net, plain, sets, draws_of(net, int(each or 0), settings))
    chosen = {"setting": choice(base, sets, settings)} if base in CHOICES else {}
    return found | {"training_cpu_seconds": seconds, "relative_training": seconds / plain_seconds} | chosen


def plain_heads_(net: nn.Module) -> None:
    """Turns the last layer of every network, in place, into the plain layer that it is: Laplace then has all inputs."""
    for one in net.members if isinstance(net, bnn.Ensemble) else [net]:
        one[-1] = plain_layer(one[-1])


def draws_of(net: nn.Module, each: int, settings: dict[str, Any]) -> int:
    """How many draws predict: `each` for every member, or what suits the network."""
    members = MEMBERS if isinstance(net, bnn.Ensemble) else 1
    layers = drawn_layers(net) // members
    if not layers:
        return members if members > 1 else 0
    return members * (each or (LAST_LAYER_DRAWS if layers == 1 else settings["draws"]) // members)


@functools.lru_cache(maxsize=1)
def loaded(foreign: int) -> Sets:
    """58,000 images to train on, the last 2,000 of the training file to choose, the test file, and foreign images."""
    data = images("fashion_mnist")
    strange = {name: bnn.data.load_part(name, first=foreign) for name in ("kmnist", "mnist", "notmnist")}
    assert data.validation is not None
    assert data.test is not None
    parts = {name: Part(part.x, None, data.preparation) for name, part in strange.items()}
    return Sets(data, data.validation, data.test, parts)


def model(base: str, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """The network of a row, and the seconds of one processor that it took from the very beginning."""
    first = MEMBERS * settings["seed"]
    if base in ("deep ensemble", *COMPRESSED):
        make = COMPRESSED.get(base)
        found = [
            converted(make, first + k, sets, settings) if make else deterministic(first + k, sets, settings)
            for k in range(MEMBERS)
        ]
        return bnn.Ensemble([net for net, _ in found]).eval(), sum(seconds for _, seconds in found)
    if base == "deterministic":
        return deterministic(first, sets, settings)
    if base in FROM_SCRATCH:
        return FROM_SCRATCH[base](choice(base, sets, settings), settings["seed"], sets, settings)
    return converted(base, first, sets, settings)


def choice(base: str, sets: Sets, settings: dict[str, Any]) -> float:
    """The setting of a method with the least validation NLL on seed 0."""
    scores = {}
    for value in CHOICES[base]:
        make: Callable[..., Any] = FROM_SCRATCH.get(base, functools.partial(_weighted, base))
        net, _ = make(value, 0, sets, settings)
        probs = bnn.predict(
            net,
            sets.validation.inputs(),
            samples=settings["draws"],
            likelihood="categorical",
            generator=torch.Generator().manual_seed(0),
        ).probs
        scores[value] = metrics.nll(probs, sets.validation.y)
    return min(scores, key=scores.__getitem__)


def deterministic(k: int, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    def train_(net: nn.Module, out: Any) -> None:
        bnn.fit(net, sets.data, seed=k, out=out, tensorboard=False, progress=False, **settings["training"])

    return kept(f"fashion-deterministic-{k}", functools.partial(_fresh, k), train_)


def converted(base: str, k: int, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """CNN k with another posterior, its KL weighted as validation data chose."""
    return _weighted(base, choice(base, sets, settings) if base in CHOICES else 0.0, k, sets, settings)


def _weighted(base: str, kl_weight: float, k: int, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    plain, before = deterministic(k, sets, settings)

    def train_(net: nn.Module, out: Any) -> None:
        torch.manual_seed(k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if base == "ffg-w":
                bnn.bayesianize_(net, "ffg-w")
            elif base != "trained on":
                _convert_(net, base, sets, settings)
        samples = 5 if base == "ensemble-u" else 1  # every member on every batch
        more = settings["fine_tuning"] | {"kl_weight": kl_weight, "samples": samples}
        bnn.fit(net, sets.data, seed=k, out=out, tensorboard=False, progress=False, **more)

    net, seconds = kept(f"fashion-{base}-{kl_weight:g}-{k}", lambda: copy.deepcopy(plain), train_)
    return net, before + seconds


def _convert_(net: nn.Module, base: str, sets: Sets, settings: dict[str, Any]) -> None:
    """To the sizes that the budget gives CNN 0, so that all networks are of one shape."""
    x = sets.data.train.inputs(slice(0, ACTIVATIONS))
    own = POINT if base in POINTS else {}
    sized = copy.deepcopy(deterministic(0, sets, settings)[0])
    room = laplace_head(sized[-1], MOST) if base == "small point-u" else 0
    budget = round(settings["fraction"] * bnn.parameter_count(sized)) - room
    bnn.bayesianize_(sized, FAMILIES[base], budget=budget if room else settings["fraction"], activations=x, **own)
    inference = {
        name: {
            "inference": FAMILIES[base],
            "inducing_rows": layer.options.inducing_rows,
            "inducing_cols": layer.options.inducing_cols,
            "kernel": layer.options.kernel,
            **own,
        }
        for name, layer in sized.named_modules()
        if isinstance(layer, BayesianLayer)
    }
    bnn.bayesianize_(net, inference, activations=x)


def _fresh(k: int) -> nn.Module:
    torch.manual_seed(k)
    return cnn()


def mc_dropout(p: float, seed: int, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """Dropout before every layer but the first, in training and in prediction."""

    def train_(net: nn.Module, out: Any) -> None:
        layers = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        bnn.bayesianize_(net, {name: {"inference": "mcdropout", "p": p} for name in layers[1:]})
        bnn.fit(net, sets.data, seed=seed, out=out, tensorboard=False, progress=False, **settings["training"])

    return kept(f"fashion-mc-dropout-{p:g}-{seed}", functools.partial(_fresh, MEMBERS * seed), train_)


def ivon(lr: float, seed: int, sets: Sets, settings: dict[str, Any]) -> tuple[nn.Module, float]:
    """IVON as its authors give it for small networks, one draw a step; its posterior N(m, 1 / (ess (h + delta)))."""

    def train_(net: nn.Module, out: Any) -> None:
        from ivon import IVON

        train, options = sets.data.train, settings["training"]
        assert train.y is not None
        optimiser = IVON(net.parameters(), lr=lr, ess=len(train), hess_init=0.1, weight_decay=1e-4)
        steps = options["epochs"] * (len(train) // options["batch_size"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        torch.manual_seed(seed)
        net.train()
        for _ in range(options["epochs"]):
            for batch in torch.randperm(len(train)).split(options["batch_size"])[: steps // options["epochs"]]:
                with optimiser.sampled_params(train=True):
                    optimiser.zero_grad()
                    F.cross_entropy(net(train.inputs(batch)), train.y[batch]).backward()
                optimiser.step()
                schedule.step()
        _to_ffg_(net, optimiser)

    return kept(f"fashion-ivon-{lr:g}-{seed}", functools.partial(_fresh, MEMBERS * seed), train_)


@torch.no_grad()
def _to_ffg_(net: nn.Module, optimiser: Any) -> None:
    """The Gaussian of the optimiser as an `ffg` posterior, in place: the same draws, but all of them in one pass."""
    group = optimiser.param_groups[0]
    sds = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
    parts = iter(sds.split([parameter.numel() for parameter in net.parameters()]))
    stored = {name: next(parts).view_as(parameter) for name, parameter in net.named_parameters()}
    bnn.bayesianize_(net, "ffg")
    for name, sd in stored.items():
        layer, _, kind = name.rpartition(".")
        getattr(net.get_submodule(layer), f"_{kind}_sd").copy_(inverse_softplus(sd))


FROM_SCRATCH: dict[str, Callable[..., Any]] = {"mc-dropout": mc_dropout, "ivon": ivon}
