"""A network that others trained, made smaller and Bayesian: what a few epochs bring back, against what one has already.

A row is a network, and what is added to it after training, as "point taught + laplace":

    original    the network itself
    trained on  the network itself, trained as the converted ones are: the control for their further epochs
    paper       the paper's matrix of a kernel, from the weights alone (truncated SVD); FFG-U, trained
    ours        `bayesianize_(net, "ffg-u", budget=..., activations=...)`: split kernels, layer after layer; trained
    ours taught     the same with the original network as a teacher
    point       the control: the same factors without noise and without a KL, trained
    point taught    the control with the teacher
    point taught longer     the same, trained for more epochs
    + temperature   one temperature for all logits
    + laplace       a posterior over all inputs of the last layer by `bnn.laplace_`, its prior chosen by validation data
    + marginal laplace      the same, its prior chosen by marginal likelihood, as usual
    + laplace and temperature  the same, each precision judged with a temperature of its own; then one temperature

The last layer of converted networks is put back as the plain layer that it is before Laplace, so that its posterior has
all directions of its inputs; conversions leave room for it, so that no row has more than its share of parameters.

The networks have seen all training images: of the test images the last 2,000 choose temperatures and prior precisions,
for every row, and the first 8,000 count.
"""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import bnn
from bnn.data import Data, Part
from experiments.data import imagenet_scaled
from experiments.nets import trained
from experiments.scores import class_scores
from experiments.tables import LAST_LAYER_DRAWS, Sets, drawn_layers, kept, laplace_head, plain_layer, row, with_laplace_

TEST = 8000  # images; those after them are validation data
ACTIVATIONS = 512  # unlabelled images that a conversion sees
POINT = {"inference": "inducingdeterministic", "max_sd_u": 0}  # no noise anywhere
METHODS: dict[str, dict[str, Any]] = {
    "paper": {"inference": "ffg-u", "kernel": "paper", "init": "weights"},
    "ours": {"inference": "ffg-u"},
    "ours taught": {"inference": "ffg-u"},
    "point": POINT,
    "point taught": POINT,
    "point taught longer": POINT,
}
CONTROL = "trained on"
LONGER = 5  # epochs


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    plain, sets = loaded(settings["net"], settings["foreign"])
    base, _, ending = settings["row"].partition(" + ")
    net, seconds = (copy.deepcopy(plain), 0.0) if base == "original" else fitted(base, plain, sets, settings)
    if "laplace" in ending:
        net.linear = plain_layer(net.linear)
        with_laplace_(net, sets, settings, ending)
    if ending.endswith("temperature"):
        bnn.calibrate_(net, sets.validation)
    layers = drawn_layers(net)
    draws = 0 if not layers else LAST_LAYER_DRAWS if layers == 1 else settings["draws"]
    found = row(net, plain, sets, draws)
    return found | ({"training_cpu_seconds": seconds} if seconds else {})


@functools.lru_cache(maxsize=1)
def loaded(name: str, foreign: int) -> tuple[nn.Module, Sets]:
    """The network and its data; of each foreign set the first images."""
    data = imagenet_scaled()
    scaling = data.preparation
    raw = bnn.data.load("cifar10").train  # the network has seen all of them, so nothing of them can validate
    test = data.test
    sets = Sets(
        Data("cifar10", "classification", Part(raw.x, raw.y, scaling), classes=data.classes, augment=data.augment),
        validation=test.subset(slice(TEST, None)),
        test=test.subset(slice(0, TEST)),
        foreign={
            "cifar100": Part(bnn.data.load_part("cifar100", first=foreign).x, None, scaling),
            "svhn": Part(bnn.data.load_part("svhn", "train").x, None, scaling),
        },
    )
    return trained(name), sets


def teaching(settings: dict[str, Any]) -> dict[str, Any]:
    """Scores on the validation images with the teacher's weight and temperature as given; weight 0: no teacher.

    The temperature of `nll_after_temperature` is learned on one half of them for the other.
    """
    plain, sets = loaded(settings["net"], 1)
    weight, temperature = settings["weight"], settings["temperature"]
    own = settings | {"teacher": {"teacher_weight": weight, "teacher_temperature": temperature}}
    base = settings["student"] + (" taught" if weight else "")
    net, seconds = fitted(base, plain, sets, own, f"-{settings['images']}-{weight:g}-{temperature:g}")
    draws = settings["draws"] if drawn_layers(net) else 0
    generator = torch.Generator().manual_seed(0)
    x = sets.validation.inputs()
    probs = bnn.predict(net, x, draws, likelihood="categorical", batch_size=250, generator=generator).probs
    half, y = len(probs) // 2, sets.validation.y
    first, second = (probs[:half], y[:half]), (probs[half:], y[half:])
    calibrated = [
        class_scores(*own, other)["nll_after_temperature"] for own, other in ((first, second), (second, first))
    ]
    found = class_scores(probs, y) | {"nll_after_temperature": sum(calibrated) / 2}
    return found | {"training_cpu_seconds": seconds}


def fitted(
    base: str, plain: nn.Module, sets: Sets, settings: dict[str, Any], more_name: str = ""
) -> tuple[nn.Module, float]:
    """The network of a row, trained, and the seconds that took."""
    fraction, seed = settings.get("fraction", 1.0), settings["seed"]
    teaching = {"teacher": by_channels_(copy.deepcopy(plain)), **settings["teacher"]} if "taught" in base else {}
    options = settings["training"] | ({"kl_weight": 0.0} if base.startswith(("point", CONTROL)) else {})
    epochs = LONGER if base.endswith("longer") else settings.get("epochs", {}).get(settings["net"], options["epochs"])
    options |= {"epochs": epochs}
    train = sets.data.train.subset(slice(0, settings.get("images", len(sets.data.train))))
    budget = round(fraction * bnn.parameter_count(plain)) - laplace_head(plain.linear)

    def train_(net: nn.Module, out: Any) -> None:
        if base != CONTROL:
            more = {} if base == "paper" else {"activations": train.inputs(slice(0, ACTIVATIONS))}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # how much a start loses is another table
                method = dict(METHODS[base])
                bnn.bayesianize_(net, method.pop("inference"), budget=budget, **method, **more)
        data = replace(sets.data, train=train)
        by_channels_(net)
        bnn.fit(net, data, seed=seed, out=out, tensorboard=False, progress=False, **options, **teaching)

    name = f"{settings['net']}-{fraction:g}-{base}-{epochs}-{seed}{more_name}"
    return kept(name, lambda: copy.deepcopy(plain), train_)


def by_channels_(net: nn.Module) -> nn.Module:
    """Lets a network of images, in place, work with channels last: a training step takes four fifths of the time."""
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.register_forward_pre_hook(lambda _, args: (args[0].contiguous(memory_format=torch.channels_last),))
    return net
